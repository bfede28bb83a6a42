// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/template.h"

#include "common/check.h"
#include "common/status_macros.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/parser.h"

namespace lamina::jinja {

absl::StatusOr<Template> Template::Parse(absl::string_view source) {
  LAMINA_ASSIGN_OR_RETURN(Body body, jinja::Parse(source));
  return Template(std::move(body));
}

absl::StatusOr<std::string> Template::Render(const Value& variables, const std::tm& now) const {
  LAMINA_CHECK(variables.mapping() != nullptr);
  return Interpreter(*variables.mapping(), now).Run(body_);
}

}  // namespace lamina::jinja
