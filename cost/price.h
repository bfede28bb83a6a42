// SPDX-License-Identifier: Apache-2.0
//
// What machines cost by the hour, bought ones too: written off over years, with their electricity.
//
// Threading: pure.

#pragma once

#include "cost/catalogue.h"
#include "cost/estimate.h"

namespace lamina::cost {

// The mean of Economics::load: the share of a plan's capacity that is used.
Estimate MeanLoad(const Economics& economics);

// An hour of `machine`, used or not. Bought: price / (years x 8766 h) + PUE x power x electricity,
// with the power at `load` between idle and busy. Rented: the price per hour.
Estimate HourlyPrice(const Catalogue& catalogue, const Machine& machine, Estimate load);

// Hourly price of `count` machines of a kind and of the idle spares that go with them (N + k);
// nothing for none.
Estimate PriceOfMachines(const Catalogue& catalogue, const Machine& machine, uint32_t count);

}  // namespace lamina::cost
