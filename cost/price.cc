// SPDX-License-Identifier: Apache-2.0
#include "cost/price.h"

#include <numeric>

#include "common/check.h"

namespace lamina::cost {
namespace {

constexpr double kHoursPerYear = 8766;

Estimate Watts(const Device& device, const Machine& machine, Estimate load) {
  const double devices = machine.devices;
  const Estimate idle = devices * device.idle_watts.estimate() + machine.idle_watts.estimate();
  const Estimate busy = devices * device.busy_watts.estimate() + machine.busy_watts.estimate();
  return idle + load * (busy - idle);
}

}  // namespace

Estimate MeanLoad(const Economics& economics) {
  const double sum = std::accumulate(economics.load.begin(), economics.load.end(), 0.0);
  return {sum / static_cast<double>(economics.load.size()), economics.load_provenance};
}

Estimate HourlyPrice(const Catalogue& catalogue, const Machine& machine, Estimate load) {
  const Price& price = machine.price;
  if (price.kind != PriceKind::kBought) {
    return price.hour.estimate();
  }
  const Device* device = catalogue.FindDevice(machine.device);
  LAMINA_CHECK(device != nullptr);  // The catalogue was checked when it was read.
  const Economics& economics = catalogue.economics;
  const Estimate parts = price.host.estimate() + machine.devices * price.card.estimate() +
                         price.nic.estimate() + price.switch_port.estimate();
  const Estimate kilowatts = Watts(*device, machine, load) / 1000.0;
  return parts / (kHoursPerYear * economics.years.estimate()) +
         economics.pue.estimate() * kilowatts * economics.electricity.estimate();
}

Estimate PriceOfMachines(const Catalogue& catalogue, const Machine& machine, uint32_t count) {
  if (count == 0) {
    return {};
  }
  const Estimate used = HourlyPrice(catalogue, machine, MeanLoad(catalogue.economics));
  const Estimate idle = HourlyPrice(catalogue, machine, {0, Provenance::kMeasured});
  return Real(count) * used + Real(catalogue.economics.spares) * idle;
}

}  // namespace lamina::cost
