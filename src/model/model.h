/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - from a checked GGUF file to the execution graph; one file per architecture.
 *
 * Everything that the file claims about shapes is checked against its tensors here, so that a
 * driver may trust the graph. The graph points into the file's mapping (weights) and owns copies of
 * what is small (norms, rope factors): keep the file open while the graph lives. Immutable: any
 * thread. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "device/graph.h"
#include "gguf/gguf.h"
#include "troika/status.h"

/* UNSUPPORTED names the architecture and lists the known ones; FORMAT names the key or tensor, what
 * was wanted and what is there. */
troika_status model_graph_create(const gguf *file, graph **out, troika_error *err);
void model_graph_destroy(graph **g);

/* "llama": the file's, as this build spells it; "" if it is not known. */
const char *model_architecture_name(const gguf *file);

/* "gemma3, llama" */
const char *model_architectures(void);

#endif
