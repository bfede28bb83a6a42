// SPDX-License-Identifier: Apache-2.0
//
// Fields of a request's body that say how many answers there are, and which: OpenAI's n and
// best_of, and vLLM's and transformers' words for beam searches. The gateway and `lamina batch`
// read them.
//
// Errors: as JsonObject's, each with the field and OpenAI's code for the mistake.
//
// Threading: free functions without state.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "client/client.h"
#include "client/json_object.h"

namespace lamina::client {

inline constexpr uint32_t kChoicesMax = 128;  // Choices of one prompt, as the coordinator allows.

// n. Without it options.n is 1.
absl::Status ReadChoices(JsonObject& body, GenerateOptions& options);

// best_of: so many are made, and those of the highest mean log-probability come. Without it, and
// where it is n, options.best_of stays empty. Requires: ReadChoices() before.
absl::Status ReadBestOf(JsonObject& body, GenerateOptions& options);

// use_beam_search, beam_width, length_penalty and early_stopping. Without a width it is best_of or
// n, if these are above 1; a search leaves options.best_of empty.
// Requires: options has the temperature that the body names, and ReadChoices() and, where best_of
// is served, ReadBestOf() before.
absl::Status ReadBeams(JsonObject& body, GenerateOptions& options);

}  // namespace lamina::client
