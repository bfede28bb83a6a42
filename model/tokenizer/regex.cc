// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/tokenizer/regex_dialect.h"

namespace lamina::model {
namespace {

// Steps of one match. The patterns of known tokenizers need a few per character at most; a run of
// 1 MB of spaces stays well below.
constexpr uint32_t kMatchStepsMax = 50'000'000;
constexpr uint32_t kMatchHeapKibMax = 256 * 1024;

struct FreeHandle {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, FreeHandle> code;
  std::unique_ptr<pcre2_match_context, FreeHandle> limits;
  std::string pattern;
  bool jit = false;

  // The first match in `subject` at or after `start`: its range, or nothing matched.
  absl::StatusOr<TextRange> Find(absl::string_view subject, size_t start,
                                 pcre2_match_data* data) const {
    const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (jit) {
      found = pcre2_jit_match(code.get(), bytes, subject.size(), start, 0, data, limits.get());
    }
    // Without compiled code, or where it needs more than the 32 KiB of machine stack it gets.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code.get(), bytes, subject.size(), start,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, limits.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) {
      return TextRange{};
    }
    if (found < 0) {
      // The text will fare no better when it is sent again.
      return absl::InvalidArgumentError(absl::StrCat("the tokenizer's pattern ", pattern,
                                                     " gave up on a text: ", ErrorText(found)));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    return TextRange{ends[0], ends[1], true};
  }
};

Regex::Regex(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  LAMINA_ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  auto compiled = std::make_unique<Compiled>();
  compiled->pattern = std::string(pattern);
  const std::unique_ptr<pcre2_compile_context, FreeHandle> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE: Ruby's ^ and $ always mean lines.
  compiled->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                    &offset, context.get()));
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer's pattern ", pattern, " (as ",
                                                   translated, "): ", ErrorText(error), " at byte ",
                                                   offset));
  }
  compiled->jit = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE) == 0;
  compiled->limits.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(compiled->limits.get(), kMatchStepsMax);
  pcre2_set_heap_limit(compiled->limits.get(), kMatchHeapKibMax);
  return Regex(std::move(compiled));
}

absl::Status Regex::Cut(absl::string_view text, const std::vector<TextRange>& ranges,
                        std::vector<TextRange>* out) const {
  const std::unique_ptr<pcre2_match_data, FreeHandle> data(pcre2_match_data_create(1, nullptr));
  out->clear();
  for (const TextRange& range : ranges) {
    const absl::string_view subject = text.substr(range.begin, range.end - range.begin);
    size_t done = 0;   // Everything before this is in `out`.
    size_t start = 0;  // Where to look next.
    while (start < subject.size()) {
      LAMINA_ASSIGN_OR_RETURN(const TextRange match, compiled_->Find(subject, start, data.get()));
      if (!match.matched) {
        break;
      }
      if (match.begin == match.end) {
        // An empty match cuts nothing: go on one character later.
        start = match.end + 1;
        while (start < subject.size() && (static_cast<uint8_t>(subject[start]) & 0xC0) == 0x80) {
          ++start;
        }
        continue;
      }
      if (match.begin > done) {
        out->push_back({range.begin + done, range.begin + match.begin, false});
      }
      out->push_back({range.begin + match.begin, range.begin + match.end, true});
      start = done = match.end;
    }
    if (done < subject.size()) {
      out->push_back({range.begin + done, range.end, false});
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
