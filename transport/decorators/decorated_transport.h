// SPDX-License-Identifier: Apache-2.0
//
// DecoratedTransport: another transport behind a link that a LinkModel makes slow or faulty. What
// is late waits at the sender and is handed on in Progress() and Wait(); so the sender must call
// them while Pending() is not 0.
//
// Order kept: Puts to one region leave in order; one with a signal leaves after every earlier Put.
// Errors: where the transport below refuses a Put that was accepted here, all Waits that follow
// return its error, and the Puts to that region.
// Not kept, on purpose: what a Fault drops or corrupts.

#pragma once

#include <memory>

#include "common/clock.h"
#include "transport/decorators/link_model.h"
#include "transport/transport.h"

namespace lamina::transport {

// `clock` must outlive the result.
std::unique_ptr<Transport> Decorate(std::unique_ptr<Transport> inner,
                                    std::unique_ptr<LinkModel> model, const Clock& clock);

}  // namespace lamina::transport
