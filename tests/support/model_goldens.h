// SPDX-License-Identifier: Apache-2.0
//
// The committed logits of random models (tests/fidelity/goldens/random_models.json), as
// make_model_goldens.py writes them: for each case its spec and prompts; for each prompt rows with
// some columns of the logits and the largest of them. random_models_bf16.json has the same columns
// of some cases in bf16.

#pragma once

#include "nlohmann/json.hpp"
#include "tests/support/random_model.h"

namespace lamina::test_support {

// All cases. Read once, at the first call.
const nlohmann::json& RandomModelCases();
const nlohmann::json& RandomModelBf16Cases();

// The "spec" of a case.
RandomModelSpec ParseRandomModelSpec(const nlohmann::json& json);

}  // namespace lamina::test_support
