// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a GGUF file: refused with a message, or each of its tensors can be read, and its
// tokenizer, if it makes one, encodes and decodes.
#include <algorithm>
#include <string>
#include <vector>

#include "common/check.h"
#include "model/gguf/gguf_file.h"
#include "model/tokenizer/gguf_tokenizer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/gguf_writer.h"

namespace lamina::model {
namespace {

using test_support::GgufWriter;

std::string Vocabulary(const std::string& kind) {
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddString("tokenizer.ggml.model", kind);
  writer.AddString("tokenizer.ggml.pre", "default");
  writer.AddStrings(
      "tokenizer.ggml.tokens",
      std::vector<std::string>{"<unk>", "<s>", "a", "b", "ab", "<0x41>", "\xE2\x96\x81"});
  writer.AddInts("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 1, 1, 1, 6, 1});
  writer.AddFloats("tokenizer.ggml.scores", std::vector<float>{0, 0, -1, -2, -3, 0, -4});
  writer.AddStrings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  writer.AddUint("tokenizer.ggml.bos_token_id", 1);
  writer.AddBool("tokenizer.ggml.add_bos_token", true);
  return writer.Finish();
}

std::string Weights() {
  GgufWriter writer(2);
  writer.AddFloat("llama.rope.freq_base", 10000);
  writer.AddUint("general.alignment", 32);
  writer.AddTensorF32("token_embd.weight", std::vector<uint64_t>{2, 4},
                      std::vector<float>(8, 1.0f));
  writer.AddTensorQ8_0("blk.0.attn_q.weight", std::vector<uint64_t>{2, 32},
                       std::vector<float>(64, 0.5f));
  return writer.Finish();
}

void Check(const GgufFile& file) {
  for (const TensorInfo& info : file.tensors()) {
    LAMINA_CHECK(info.stored_bytes <= 1 << 20);
    std::vector<float> out(info.elements);
    LAMINA_CHECK(file.Read(info.name, 0, absl::MakeSpan(out)).ok());
  }
  const auto tokenizer = LoadGgufTokenizer(file);
  if (tokenizer.ok()) {
    const auto tokens = (*tokenizer)->Encode("ab<s> A\xC3\xA9", {});
    LAMINA_CHECK(!tokens.ok() || (*tokenizer)->Decode(*tokens, false).ok());
  }
}

}  // namespace
}  // namespace lamina::model

std::vector<std::string> GeneratedSeeds() {
  return {lamina::model::Vocabulary("gpt2"), lamina::model::Vocabulary("llama"),
          lamina::model::Weights()};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = lamina::model::GgufFile::Parse({data, size});
  if (file.ok()) {
    lamina::model::Check(**file);
  } else {
    LAMINA_CHECK(!file.status().message().empty());
  }
  return 0;
}
