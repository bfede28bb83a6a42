// SPDX-License-Identifier: Apache-2.0
//
// What the web page at / is made of: its files, compiled in, and the state of the cluster.
//
// Threading: the gateway's.

#pragma once

#include <memory>
#include <string>

#include "gateway/backend.h"
#include "gateway/response_writer.h"

namespace lamina::gateway {

// Requires: `path` is "/" or that of a file of the page, as "/page.js". The headers let the page
// load nothing and talk to nobody but the gateway.
HttpResponse PageFile(const std::string& path);

// The coordinator's status, in the form of `lamina status --json`.
std::shared_ptr<RequestHandler> AnswerStatus(Backend& backend, ResponseWriter& writer);

}  // namespace lamina::gateway
