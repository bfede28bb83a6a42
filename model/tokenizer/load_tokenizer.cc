// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "common/status_macros.h"
#include "model/gguf/gguf_file.h"
#include "model/tokenizer/gguf_tokenizer.h"
#include "model/tokenizer/huggingface_tokenizer.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::model {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return LoadHuggingFaceTokenizer(path);
  }
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  return LoadGgufTokenizer(*file);
}

}  // namespace lamina::model
