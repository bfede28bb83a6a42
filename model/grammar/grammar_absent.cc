// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/grammar.h"

namespace lamina::model {

absl::StatusOr<std::unique_ptr<GrammarCompiler>> MakeGrammarCompiler(const Tokenizer&, size_t) {
  return absl::UnimplementedError(
      "output of a given form is not built in; run deploy/get_xgrammar.sh, build again, and "
      "restart "
      "the cluster");
}

}  // namespace lamina::model
