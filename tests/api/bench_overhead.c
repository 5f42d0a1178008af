/* SPDX-License-Identifier: Apache-2.0 */
/* What HTTP and JSON cost beside the engine, with SmolLM2 and 16 streams at once. One runtime
 * answers in turn the same requests in process (one thread pulls the events) and over HTTP (one
 * thread reads 16 sockets and throws away what it reads), so machine and neighbours are the same.
 *
 *   CPU per streamed token   of the threads named http*, api*: from the kernel's account of them
 *   decode rate              of the engine's own clock, first to last token, 16 streams' mean
 *
 * `make overhead` shows the figures. */
#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/api.h"
#include "base/check.h"
#include "base/os.h"
#include "figures.h"
#include "troika/stream.h"

enum { STREAMS = 16, TOKENS = 192, PAIRS = 8, PROMPT = 8, TAIL = 4096 };

static troika_model *model;
static troika_runtime *runtime;

/* CPU time of this process's threads whose name begins so; ns. */
static double threads_cpu(const char *name) {
  double sum = 0;
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks);
  for (struct dirent *d; (d = readdir(tasks));) {
    char path[300], comm[32] = "";
    unsigned long long ns = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
    FILE *f = fopen(path, "re");
    if (f && !fgets(comm, sizeof comm, f)) comm[0] = 0;
    if (f) fclose(f);
    if (strncmp(comm, name, strlen(name)) != 0) continue;
    snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", d->d_name);
    if (!(f = fopen(path, "re"))) continue;
    if (fscanf(f, "%llu", &ns) == 1) sum += (double)ns;
    fclose(f);
  }
  closedir(tasks);
  return sum;
}

static int32_t token_of(int stream, int i) {
  return 1000 + stream * 37 + i;
}

/* Tokens per second of one stream, the mean of all. */
static double in_process(void) {
  troika_stream *s[STREAMS];
  double sum = 0;
  for (int i = 0; i < STREAMS; i++) {
    int32_t prompt[PROMPT];
    troika_request q;
    troika_request_init(&q);
    for (int j = 0; j < PROMPT; j++) prompt[j] = token_of(i, j);
    q.prompt = prompt;
    q.prompt_n = PROMPT;
    q.max_tokens = TOKENS;
    q.temperature = 0;
    q.ignore_eos = true;
    CHECK(!troika_stream_open(runtime, NULL, &s[i], NULL));
    CHECK(!troika_stream_submit(s[i], &q, NULL));
  }
  for (int i = 0; i < STREAMS; i++) {
    troika_event e = {0};
    while (!troika_stream_next(s[i], &e, -1)) continue;
    CHECK(e.finish == TROIKA_FINISH_LENGTH && e.completion_tokens == TOKENS);
    sum += (TOKENS - 1) * 1e9 / (double)e.timings.decode_ns;
    troika_stream_close(&s[i]);
  }
  return sum / STREAMS;
}

static int ask(uint16_t port, int stream) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  char body[512], head[1024];
  int fd = socket(AF_INET, SOCK_STREAM, 0), n = 0;
  CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to));
  n += snprintf(body, sizeof body,
                "{\"stream\":true,\"temperature\":0,\"ignore_eos\":true,"
                "\"max_tokens\":%d,\"prompt\":[%d",
                TOKENS, token_of(stream, 0));
  for (int j = 1; j < PROMPT; j++)
    n += snprintf(body + n, sizeof body - (size_t)n, ",%d", token_of(stream, j));
  n += snprintf(body + n, sizeof body - (size_t)n, "]}");
  int len =
      snprintf(head, sizeof head,
               "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%s", n, body);
  CHECK(send(fd, head, (size_t)len, 0) == len);
  return fd;
}

typedef struct reader { /* the end of what one socket has brought */
  char tail[2 * TAIL];
  size_t len;
  bool done;
} reader;

static void read_some(reader *r, int fd) {
  char more[TAIL];
  ssize_t n = recv(fd, more, sizeof more, 0);
  CHECK(n > 0);
  if (r->len + (size_t)n > sizeof r->tail - 1) {
    size_t keep = TAIL - 1;
    memmove(r->tail, r->tail + r->len - keep, keep);
    r->len = keep;
  }
  memcpy(r->tail + r->len, more, (size_t)n);
  r->len += (size_t)n;
  r->tail[r->len] = 0;
  size_t from = r->len > (size_t)n + 16 ? r->len - (size_t)n - 16 : 0;
  r->done = strstr(r->tail + from, "data: [DONE]") != NULL;
}

static double over_http(uint16_t port) {
  static reader readers[STREAMS];
  struct pollfd sockets[STREAMS];
  double sum = 0;
  int left = STREAMS;
  for (int i = 0; i < STREAMS; i++) {
    readers[i] = (reader){.len = 0};
    sockets[i] = (struct pollfd){.fd = ask(port, i), .events = POLLIN};
  }
  while (left) {
    CHECK(poll(sockets, STREAMS, 60000) > 0);
    for (int i = 0; i < STREAMS; i++) {
      if (!(sockets[i].revents & (POLLIN | POLLHUP))) continue;
      read_some(&readers[i], sockets[i].fd);
      if (!readers[i].done) continue;
      const char *ms = strstr(readers[i].tail, "\"decode_ms\":");
      CHECK(ms);
      sum += (TOKENS - 1) * 1e3 / strtod(ms + 12, NULL);
      close(sockets[i].fd);
      sockets[i].fd = -1;
      left--;
    }
  }
  return sum / STREAMS;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, by_value);
  return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

int main(void) {
  const char *cache = getenv("TROIKA_CACHE");
  char path[4096];
  api *a;
  http_server *server;
  double http_cpu[PAIRS], ratio[PAIRS], direct[PAIRS];
  snprintf(path, sizeof path, "%s/models/SmolLM2-135M-Instruct.Q4_1.gguf", cache ? cache : "");
  troika_runtime_options options = {.size = sizeof options, .parallel = STREAMS, .context = 1024};
  CHECK(!troika_model_open(path, NULL, &model, NULL));
  CHECK(!troika_runtime_open(model, &options, &runtime, NULL));
  api_options api_of;
  http_options http_of;
  api_options_init(&api_of);
  http_options_init(&http_of);
  api_of.model = model;
  api_of.runtime = runtime;
  api_of.model_name = "smollm2";
  http_of.port = 0;
  CHECK(!api_open(&api_of, &a, NULL));
  api_serve(a, &http_of);
  CHECK(!http_server_open(&http_of, &server, NULL));
  in_process();
  for (int i = 0; i < PAIRS; i++) {
    /* Which one comes first changes from pair to pair. */
    if (i % 2 == 0) direct[i] = in_process();
    double before = threads_cpu("http") + threads_cpu("api");
    double rate = over_http(http_server_port(server));
    http_cpu[i] = (threads_cpu("http") + threads_cpu("api") - before) / (STREAMS * TOKENS) / 1e3;
    if (i % 2 == 1) direct[i] = in_process();
    ratio[i] = (1 - rate / direct[i]) * 100;
    printf("pair %d: in process %.1f tok/s a stream, over HTTP %.1f, %.1f us a token\n", i,
           direct[i], rate, http_cpu[i]);
    fflush(stdout);
  }
  double cpu = median(http_cpu, PAIRS), slower = median(ratio, PAIRS); /* both are sorted now */
  figure_spread("HTTP and JSON, CPU us per streamed token, median", "<=", 20, cpu,
                http_cpu[PAIRS - 1] - http_cpu[0]);
  figure_spread("16 streams over HTTP, decode slower by %, median", "<=", 3, slower,
                ratio[PAIRS - 1] - ratio[0]);
  http_server_close(&server);
  api_close(&a);
  CHECK(!troika_runtime_close(&runtime));
  CHECK(!troika_model_close(&model));
  return figures_end();
}
