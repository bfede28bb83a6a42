// SPDX-License-Identifier: Apache-2.0
//
// What XGrammar would write to the terminal: warnings that it leaves out part of a form. Part of
// its library, since its sources call this.
//
// Threading: each thread has its own.

#pragma once

#include <string>

namespace lamina::model {

// The first part of a form that was left out in this thread since the last call; empty for none.
std::string TakeDropped();

}  // namespace lamina::model
