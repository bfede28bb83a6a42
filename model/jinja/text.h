// SPDX-License-Identifier: Apache-2.0
//
// Python's str over UTF-8: positions count characters, white space and case are Unicode's.
//
// All texts are valid UTF-8. Threading: free functions without state.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lamina::jinja {

// str.isspace() of one character: Unicode's white space and the separators \x1c to \x1f.
bool IsSpace(uint32_t character);
// Whether repr() shows it as it is.
bool IsPrintable(uint32_t character);
bool IsAlphabetic(uint32_t character);
bool IsNumeric(uint32_t character);  // A decimal digit, as isdigit().
bool IsUpper(uint32_t character);
bool IsLower(uint32_t character);

size_t CountCharacters(absl::string_view text);
// The byte where character `index` begins; the size when there are fewer.
size_t ByteOffset(absl::string_view text, size_t index);
std::vector<uint32_t> Characters(absl::string_view text);
// Each character as a text of its own.
std::vector<std::string> SplitCharacters(absl::string_view text);

enum Side : uint8_t { kLeft = 1, kRight = 2, kBoth = 3 };
absl::string_view StripSpace(absl::string_view text, Side side);
// Strips any of the characters in `set`.
absl::string_view StripCharacters(absl::string_view text, absl::string_view set, Side side);

std::string ToUpper(absl::string_view text);
std::string ToLower(absl::string_view text);
// The first character in upper case, the others in lower case.
std::string Capitalize(absl::string_view text);

// str.split() without a separator. `limit` < 0 means none.
// Where `sub` begins in `text`, first or last; npos when nowhere.
// Cost: O(n), whatever the two are, where the plain search takes O(n m).
size_t FindText(absl::string_view text, absl::string_view sub);
size_t FindLastText(absl::string_view text, absl::string_view sub);

std::vector<std::string> SplitSpace(absl::string_view text, int64_t limit);
std::vector<std::string> ReverseSplitSpace(absl::string_view text, int64_t limit);
// `separator` is not empty.
std::vector<std::string> Split(absl::string_view text, absl::string_view separator, int64_t limit);
std::vector<std::string> ReverseSplit(absl::string_view text, absl::string_view separator,
                                      int64_t limit);
std::vector<std::string> SplitLines(absl::string_view text, bool keep_ends);

}  // namespace lamina::jinja
