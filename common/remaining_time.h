// SPDX-License-Identifier: Apache-2.0
//
// RemainingTime: how long work still takes at the pace that it has had so far, in words for a line
// of progress.

#pragma once

#include <string>

namespace lamina {

// "12 s left", "3 min left", "2.5 h left" for `done` of `all` after `seconds`. Empty where the pace
// is not known yet: nothing is done, or half a second has not passed; and at the end.
std::string RemainingTime(double done, double all, double seconds);

}  // namespace lamina
