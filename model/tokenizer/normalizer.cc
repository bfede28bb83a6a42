// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/tokenizer/text_growth.h"
#include "model/tokenizer/utf8.h"

namespace lamina::model {
namespace {

// The most that all steps together may shrink a text; a bound beyond says nothing about any text.
constexpr size_t kShrinkMax = size_t{1} << 20;

// The longest decomposition of one character has 18 code points (U+FDFA).
constexpr size_t kDecompositionMax = 32;

utf8proc_option_t OptionsOf(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc ? UTF8PROC_COMPOSE
                                                                     : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) {
    options |= UTF8PROC_COMPAT;
  }
  return static_cast<utf8proc_option_t>(options);
}

int CombiningClass(utf8proc_int32_t codepoint) {
  return utf8proc_get_property(codepoint)->combining_class;
}

std::vector<utf8proc_int32_t> Decompose(absl::string_view text, utf8proc_option_t options) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  std::array<utf8proc_int32_t, kDecompositionMax> buffer{};
  while (!text.empty()) {
    const Utf8Step step = ReadUtf8(text);
    int boundary_class = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.codepoint), buffer.data(),
                                buffer.size(), options, &boundary_class);
    LAMINA_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(buffer.size()));
    out.insert(out.end(), buffer.begin(), buffer.begin() + count);
    text.remove_prefix(step.length);
  }
  return out;
}

// utf8proc's own loop exchanges neighbours and takes quadratic time on a long run of marks.
void OrderMarks(std::vector<utf8proc_int32_t>* codepoints) {
  const auto is_mark = [](utf8proc_int32_t c) { return CombiningClass(c) != 0; };
  auto run = codepoints->begin();
  while ((run = std::find_if(run, codepoints->end(), is_mark)) != codepoints->end()) {
    const auto end = std::find_if_not(run, codepoints->end(), is_mark);
    std::stable_sort(run, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    run = end;
  }
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

std::string EncodeCodepoints(const std::vector<utf8proc_int32_t>& codepoints) {
  std::string out;
  out.reserve(codepoints.size() * 2);
  for (const utf8proc_int32_t codepoint : codepoints) {
    AppendUtf8(static_cast<uint32_t>(codepoint), &out);
  }
  return out;
}

absl::StatusOr<std::string> Replace(const ReplaceStep& step, absl::string_view text,
                                    size_t bytes_max) {
  std::vector<TextRange> cut;
  LAMINA_RETURN_IF_ERROR(step.pattern.Cut(text, {{0, text.size()}}, &cut));
  std::string out;
  for (const TextRange& range : cut) {
    const absl::string_view part = range.matched
                                       ? absl::string_view(step.replacement)
                                       : text.substr(range.begin, range.end - range.begin);
    LAMINA_RETURN_IF_ERROR(CheckGrowth(out.size() + part.size(), bytes_max));
    absl::StrAppend(&out, part);
  }
  return out;
}

}  // namespace

std::string NormalizeUnicode(absl::string_view text, UnicodeForm form) {
  if (IsAscii(text)) {
    return std::string(text);
  }
  const utf8proc_option_t options = OptionsOf(form);
  std::vector<utf8proc_int32_t> codepoints = Decompose(text, options);
  OrderMarks(&codepoints);
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      codepoints.data(), static_cast<utf8proc_ssize_t>(codepoints.size()), options);
  LAMINA_CHECK(length >= 0);
  codepoints.resize(static_cast<size_t>(length));
  return EncodeCodepoints(codepoints);
}

absl::StatusOr<std::string> Normalizer::Apply(absl::string_view text) const {
  std::string out(text);
  const size_t bytes_max = GrownMax(text.size());
  for (const NormalizerStep& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      out = NormalizeUnicode(out, *form);
    } else if (const auto* prepend = std::get_if<PrependStep>(&step)) {
      if (!out.empty()) {
        LAMINA_RETURN_IF_ERROR(CheckGrowth(out.size() + prepend->prefix.size(), bytes_max));
        out.insert(0, prepend->prefix);
      }
    } else {
      LAMINA_ASSIGN_OR_RETURN(out, Replace(std::get<ReplaceStep>(step), out, bytes_max));
    }
  }
  return out;
}

size_t Normalizer::shrink_max() const {
  size_t most = 1;
  for (const NormalizerStep& step : steps_) {
    if (std::holds_alternative<UnicodeForm>(step)) {
      most *= kUnicodeShrinkMax;
    } else if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
      const size_t bytes = replace->replacement.size();
      if (replace->literal_bytes == 0 || bytes == 0) {
        return 0;
      }
      most *= std::max<size_t>(1, (replace->literal_bytes + bytes - 1) / bytes);
    }
    if (most > kShrinkMax) {
      return 0;
    }
  }
  return most;
}

}  // namespace lamina::model
