// SPDX-License-Identifier: Apache-2.0
//
// Catalogue: devices, links, machines with their prices, and models, as a YAML file lists them. See
// docs/formats/catalogue.md for every key.
//
// Every figure says where it comes from: measured, a datasheet or an assumption, with a source and
// its date. Nothing here reads a file or a clock: callers bring the text and today's date.
//
// Threading: values.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cost/estimate.h"
#include "cost/model_shape.h"

namespace lamina::cost {

struct Figure {
  double value = 0;
  Provenance provenance = Provenance::kAssumed;
  std::string source;  // A key of Catalogue::sources.

  Estimate estimate() const { return {value, provenance}; }
};

struct Source {
  std::string what;  // Title, page or reasoning.
  std::string date;  // 2026-11-24
};

enum class DeviceKind : uint8_t { kCpu, kGpu };

// How a dense layer's reads of weights and its arithmetic add up. A roofline takes the longer one;
// a line that was fitted to measurements takes their sum.
enum class DenseTime : uint8_t { kRoofline, kLine };

struct Device {
  std::string name;
  DeviceKind kind = DeviceKind::kGpu;
  Runs runs;
  Figure capacity;                      // Bytes.
  Figure bandwidth;                     // Bytes/s.
  std::map<std::string, Figure> flops;  // By type: bf16, f32, int8. bf16 is always there.
  Figure mfu;                           // Share of flops that dense layers with many rows reach.
  Figure mbu_dense;                     // Share of bandwidth with which they read weights.
  Figure mbu_attention;                 // Share of bandwidth of decode attention.
  DenseTime dense_time = DenseTime::kRoofline;
  Figure idle_watts;
  Figure busy_watts;
};

struct Link {
  std::string name;
  Figure bandwidth;  // Bytes/s, each way.
  Figure latency;    // Seconds of one message.
};

enum class PriceKind : uint8_t { kBought, kOnDemand, kSpot };

absl::string_view PriceKindName(PriceKind kind);

// What a machine costs. Bought: the four parts, once. Rented: `hour`.
struct Price {
  PriceKind kind = PriceKind::kBought;
  Figure host;         // Processor, memory, case, power supply.
  Figure card;         // Each device, if it is a card.
  Figure nic;          // All network cards of the machine.
  Figure switch_port;  // The machine's share of the switch.
  Figure hour;
};

struct Machine {
  std::string name;
  std::string device;
  uint32_t devices = 1;
  std::string link;     // To other machines; all devices of the machine share it.
  std::string between;  // Between its devices; none where it has one.
  // Its processors, where its devices are cards: they can be memory nodes besides these. Each of
  // `host_devices` is a device of the catalogue; `host_link` is each card's to their memory.
  std::string host;
  uint32_t host_devices = 1;
  std::string host_link;
  Price price;
  Figure idle_watts;  // Power of the host without its devices.
  Figure busy_watts;
};

// What turns prices into a price per hour, and per token.
struct Economics {
  std::string currency;
  Figure years;              // Over which a bought machine is written off.
  std::vector<double> load;  // Share of the plan's capacity that is used: one value, or 24 by hour.
  Provenance load_provenance = Provenance::kAssumed;
  std::string load_source;
  Figure electricity;   // Per kWh.
  Figure pue;           // Power of the building over power of the machines.
  uint32_t spares = 0;  // Idle machines of each kind that a plan uses (N + k).
};

struct Catalogue {
  std::map<std::string, Source> sources;
  Economics economics;
  std::vector<Device> devices;
  std::vector<Link> links;
  std::vector<Machine> machines;
  std::vector<ModelShape> models;

  const Device* FindDevice(absl::string_view name) const;
  const Link* FindLink(absl::string_view name) const;
  const Machine* FindMachine(absl::string_view name) const;
  const ModelShape* FindModel(absl::string_view name) const;
};

// Returns the catalogue that a file names as its base, "default" or a path as it is written there.
using ReadBase = std::function<absl::StatusOr<Catalogue>(const std::string& base)>;

// Reads a catalogue; `origin` names it in messages. One with a `base` is laid over it: its entries
// replace keys of those of the same name there, and the others are added; what it leaves out stays.
//
// Errors: kInvalidArgument  with the line: not YAML, an unknown key (and the nearest known one), a
//                           figure without unit, provenance or source, a price in another currency
//                           or none at all, a name that nothing has; a base without `read_base`, or
//                           what that says of it; says what to write.
absl::StatusOr<Catalogue> ParseCatalogue(absl::string_view text, absl::string_view origin,
                                         const ReadBase& read_base = nullptr);

// Days from 1970-01-01 to a date like 2026-11-24.
// Errors: kInvalidArgument for anything else.
absl::StatusOr<int64_t> ParseDate(absl::string_view date);

// Prices older than this are marked.
inline constexpr int64_t kPriceDaysMax = 180;

// The oldest date among a machine's prices, and whether that is more than kPriceDaysMax before
// `today`. Requires: dates that ParseDate() takes, as those of a parsed catalogue are.
struct PriceAge {
  std::string date;
  bool old = false;
};
PriceAge AgeOfPrice(const Catalogue& catalogue, const Price& price, absl::string_view today);

}  // namespace lamina::cost
