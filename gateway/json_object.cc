// SPDX-License-Identifier: Apache-2.0
#include "gateway/json_object.h"

#include "absl/strings/str_cat.h"
#include "common/json_bounds.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

// Finds where parsing fails, for the message.
class ErrorPlace : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    byte = position;
    return false;
  }
  size_t byte = 0;
};

}  // namespace

absl::StatusOr<Json> ParseBody(absl::string_view body) {
  if (const absl::Status bounded = CheckRequestJson(body, "the body"); !bounded.ok()) {
    return BadField("", "invalid_json", std::string(bounded.message()));
  }
  Json value = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    ErrorPlace place;
    Json::sax_parse(body.begin(), body.end(), &place);
    return BadField("", "invalid_json",
                    absl::StrCat("the body is not valid JSON (at byte ", place.byte, ")"));
  }
  if (!value.is_object()) {
    return BadField("", "invalid_type",
                    absl::StrCat("the body must be a JSON object, and is ", JsonTypeName(value)));
  }
  return value;
}

void JoinPart(std::string& text, absl::string_view part) {
  absl::StrAppend(&text, text.empty() ? "" : "\n", part);
}

}  // namespace lamina::gateway
