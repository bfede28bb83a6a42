// SPDX-License-Identifier: Apache-2.0
//
// The two macros that propagate absl::Status. Nothing else in the tree hides control flow.

#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expression` is a non-OK absl::Status.
#define LAMINA_RETURN_IF_ERROR(expression)        \
  do {                                            \
    ::absl::Status lamina_status_ = (expression); \
    if (!lamina_status_.ok()) {                   \
      return lamina_status_;                      \
    }                                             \
  } while (false)

#define LAMINA_STATUS_CONCAT_INNER_(a, b) a##b
#define LAMINA_STATUS_CONCAT_(a, b) LAMINA_STATUS_CONCAT_INNER_(a, b)

// NOLINTBEGIN(bugprone-macro-parentheses): `target` may be a declaration.
// Moves the value of a StatusOr into `target` (a declaration or an lvalue), or returns its error.
#define LAMINA_ASSIGN_OR_RETURN(target, expression) \
  LAMINA_ASSIGN_OR_RETURN_IMPL_(LAMINA_STATUS_CONCAT_(lamina_or_, __LINE__), target, expression)
#define LAMINA_ASSIGN_OR_RETURN_IMPL_(statusor, target, expression) \
  auto statusor = (expression);                                     \
  if (!statusor.ok()) {                                             \
    return std::move(statusor).status();                            \
  }                                                                 \
  target = std::move(statusor).value()
// NOLINTEND(bugprone-macro-parentheses)
