// SPDX-License-Identifier: Apache-2.0
//
// Reading of a catalogue: each kind of entry is a table of keys. What lies over a base is read into
// a copy of it.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/string_distance.h"
#include "cost/catalogue.h"
#include "cost/quantity.h"
#include "cost/yaml_reader_internal.h"

namespace lamina::cost {
namespace {

using internal::Key;
using internal::Presence;
using internal::ReadValue;

constexpr uint32_t kSparesMax = 64;
constexpr uint32_t kDevicesMax = 64;  // The most devices of one machine.

const std::vector<std::pair<std::string, Provenance>> kProvenances = {
    {"measured", Provenance::kMeasured},
    {"datasheet", Provenance::kDatasheet},
    {"assumed", Provenance::kAssumed}};

// Keys that an entry of the base has already.
std::vector<Key> AllOptional(std::vector<Key> keys) {
  for (Key& key : keys) {
    key.presence = Presence::kOptional;
  }
  return keys;
}

// The entry of `entries` that `item` names; null where there is none.
template <typename Entry>
Entry* NamedBy(const YAML::Node& item, std::vector<Entry>& entries) {
  if (!item.IsMap() || !item["name"] || !item["name"].IsScalar()) {
    return nullptr;
  }
  const std::string name = item["name"].Scalar();
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [&](const Entry& entry) { return entry.name == name; });
  return it == entries.end() ? nullptr : &*it;
}

// Where an entry is in the file; one that only its base has is wrong for what the file says of
// others.
struct Place {
  YAML::Node node;
  std::string path;
};

Place PlaceOf(const YAML::Node& root, const char* list, const std::string& name) {
  const YAML::Node items = root[list];
  for (size_t i = 0; items.IsDefined() && i < items.size(); ++i) {
    if (items[i]["name"].Scalar() == name) {
      return {items[i], absl::StrCat(list, ".", i)};
    }
  }
  return {root, absl::StrCat("(of the base) ", list, ".", name)};
}

class CatalogueReader {
 public:
  CatalogueReader(absl::string_view origin, Catalogue& catalogue)
      : yaml_(origin), catalogue_(catalogue) {}

  absl::Status Read(absl::string_view text, const ReadBase& read_base);

 private:
  absl::Status TakeBase(const YAML::Node& node, const ReadBase& read_base);
  absl::Status ReadCurrency(const YAML::Node& node);
  ReadValue Value(Unit unit, double& out) const;
  ReadValue Number(Unit unit, Figure& out) const;
  ReadValue SourceName(std::string& out) const;
  ReadValue RunsValue(Runs& out) const;
  template <typename Entry>
  ReadValue List(std::vector<Entry>& out, std::function<std::vector<Key>(Entry&)> keys) const;
  absl::Status ReadSources(const YAML::Node& node, const std::string& path);
  absl::Status ReadLoad(const YAML::Node& node, const std::string& path) const;
  absl::Status ReadFlops(const YAML::Node& node, const std::string& path, Device& device) const;
  absl::Status ReadPrice(const YAML::Node& node, const std::string& path, Price& price) const;
  std::vector<Key> EconomicsKeys() const;
  std::vector<Key> DeviceKeys(Device& device) const;
  std::vector<Key> LinkKeys(Link& link) const;
  std::vector<Key> MachineKeys(Machine& machine) const;
  std::vector<Key> ModelKeys(ModelShape& model) const;
  absl::Status CheckEconomics() const;
  absl::Status CheckMachine(const Machine& machine, const std::string& path) const;
  absl::Status Check(const YAML::Node& root) const;

  const internal::YamlReader yaml_;
  Catalogue& catalogue_;
  bool has_base_ = false;  // `catalogue_` began as the base.
};

ReadValue CatalogueReader::Value(Unit unit, double& out) const {
  return [this, unit, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    std::string text;
    LAMINA_RETURN_IF_ERROR(yaml_.Text(text)(node, path));
    const absl::StatusOr<double> value = ParseQuantity(text, unit, catalogue_.economics.currency);
    if (!value.ok()) {
      return yaml_.Error(node, absl::StrCat(path, ": ", value.status().message()));
    }
    out = *value;
    return absl::OkStatus();
  };
}

ReadValue CatalogueReader::SourceName(std::string& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(yaml_.Text(out)(node, path));
    std::vector<std::string> known;
    for (const auto& [name, source] : catalogue_.sources) {
      known.push_back(name);
    }
    if (catalogue_.sources.count(out) > 0) {
      return absl::OkStatus();
    }
    const std::string nearest = NearestName(out, known);
    return yaml_.Error(
        node, absl::StrCat(path, ": '", out, "' is not under sources",
                           nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?")));
  };
}

ReadValue CatalogueReader::Number(Unit unit, Figure& out) const {
  return [this, unit, &out](const YAML::Node& node, const std::string& path) {
    return yaml_.ReadKeys(node, path,
                          {{"value", Value(unit, out.value)},
                           {"by", yaml_.Choice(kProvenances, out.provenance)},
                           {"source", SourceName(out.source)}});
  };
}

ReadValue CatalogueReader::RunsValue(Runs& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) {
    return yaml_.ReadKeys(node, path,
                          {{"yes", yaml_.YesOrNo(out.yes)}, {"why", yaml_.Text(out.why)}});
  };
}

template <typename Entry>
ReadValue CatalogueReader::List(std::vector<Entry>& out,
                                std::function<std::vector<Key>(Entry&)> keys) const {
  return [this, &out, keys = std::move(keys)](const YAML::Node& node, const std::string& path) {
    std::set<std::string> seen;
    return yaml_.ReadList(
        node, path, [&](const YAML::Node& item, const std::string& item_path) -> absl::Status {
          Entry* const before = NamedBy(item, out);
          Entry entry = before == nullptr ? Entry() : *before;
          std::vector<Key> known = keys(entry);
          LAMINA_RETURN_IF_ERROR(yaml_.ReadKeys(
              item, item_path, before == nullptr ? known : AllOptional(std::move(known))));
          if (!seen.insert(entry.name).second) {
            return yaml_.Error(item, absl::StrCat(item_path, ".name: '", entry.name,
                                                  "' is there twice; names are unique"));
          }
          if (before != nullptr) {
            *before = std::move(entry);
          } else {
            out.push_back(std::move(entry));
          }
          return absl::OkStatus();
        });
  };
}

absl::Status CatalogueReader::ReadSources(const YAML::Node& node, const std::string& path) {
  return yaml_.ReadMap(
      node, path, [&](const std::string& name, const YAML::Node& value) -> absl::Status {
        Source source;
        const std::string source_path = absl::StrCat(path, ".", name);
        LAMINA_RETURN_IF_ERROR(
            yaml_.ReadKeys(value, source_path,
                           {{"what", yaml_.Text(source.what)}, {"date", yaml_.Text(source.date)}}));
        if (const absl::StatusOr<int64_t> date = ParseDate(source.date); !date.ok()) {
          return yaml_.Error(value, absl::StrCat(source_path, ".date: ", date.status().message()));
        }
        catalogue_.sources[name] = source;
        return absl::OkStatus();
      });
}

// One share, or 24 by hour of the day.
absl::Status CatalogueReader::ReadLoad(const YAML::Node& node, const std::string& path) const {
  std::vector<double>& load = catalogue_.economics.load;
  load.clear();
  const auto read_one = [&](const YAML::Node& item, const std::string& item_path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(Value(Unit::kNone, load.emplace_back())(item, item_path));
    if (load.back() > 1) {
      return yaml_.Error(item, absl::StrCat(item_path, ": ", load.back(), " is not in [0, 1]"));
    }
    return absl::OkStatus();
  };
  if (node.IsScalar()) {
    LAMINA_RETURN_IF_ERROR(read_one(node, path));
  } else {
    LAMINA_RETURN_IF_ERROR(yaml_.ReadList(node, path, read_one));
  }
  double sum = 0;
  for (const double share : load) {
    sum += share;
  }
  if ((load.size() != 1 && load.size() != 24) || sum <= 0) {
    return yaml_.Error(node, absl::StrCat(path, ": has ", load.size(), " values with the sum ", sum,
                                          "; give one share above 0, or 24 by hour of the day"));
  }
  return absl::OkStatus();
}

std::vector<Key> CatalogueReader::EconomicsKeys() const {
  Economics& e = catalogue_.economics;
  return {{"years", Number(Unit::kNone, e.years)},
          {"load",
           [this](const YAML::Node& node, const std::string& path) {
             Economics& economics = catalogue_.economics;
             return yaml_.ReadKeys(
                 node, path,
                 {{"value",
                   [this](const YAML::Node& value, const std::string& value_path) {
                     return ReadLoad(value, value_path);
                   }},
                  {"by", yaml_.Choice(kProvenances, economics.load_provenance)},
                  {"source", SourceName(economics.load_source)}});
           }},
          {"electricity", Number(Unit::kMoneyPerKilowattHour, e.electricity)},
          {"pue", Number(Unit::kNone, e.pue)},
          {"spares", yaml_.Whole(e.spares)}};
}

absl::Status CatalogueReader::ReadFlops(const YAML::Node& node, const std::string& path,
                                        Device& device) const {
  Figure bf16;
  Figure f32;
  Figure int8;
  const Presence bf16_presence =
      device.flops.contains("bf16") ? Presence::kOptional : Presence::kRequired;
  LAMINA_RETURN_IF_ERROR(
      yaml_.ReadKeys(node, path,
                     {{"bf16", Number(Unit::kFlops, bf16), bf16_presence},
                      {"f32", Number(Unit::kFlops, f32), Presence::kOptional},
                      {"int8", Number(Unit::kFlops, int8), Presence::kOptional}}));
  for (const auto& [type, figure] : {std::pair("bf16", bf16), {"f32", f32}, {"int8", int8}}) {
    if (node[type] && figure.value > 0) {
      device.flops[type] = figure;
    } else if (node[type]) {
      device.flops.erase(type);
    }
  }
  return absl::OkStatus();
}

std::vector<Key> CatalogueReader::DeviceKeys(Device& device) const {
  return {
      {"name", yaml_.Text(device.name)},
      {"kind", yaml_.Choice<DeviceKind>({{"cpu", DeviceKind::kCpu}, {"gpu", DeviceKind::kGpu}},
                                        device.kind)},
      {"runs", RunsValue(device.runs)},
      {"capacity", Number(Unit::kBytes, device.capacity)},
      {"bandwidth", Number(Unit::kBytesPerSecond, device.bandwidth)},
      {"flops", [this, &device](const YAML::Node& node,
                                const std::string& path) { return ReadFlops(node, path, device); }},
      {"mfu", Number(Unit::kNone, device.mfu)},
      {"mbu_dense", Number(Unit::kNone, device.mbu_dense)},
      {"mbu_attention", Number(Unit::kNone, device.mbu_attention)},
      {"dense_time",
       yaml_.Choice<DenseTime>({{"roofline", DenseTime::kRoofline}, {"line", DenseTime::kLine}},
                               device.dense_time),
       Presence::kOptional},
      {"idle", Number(Unit::kWatts, device.idle_watts)},
      {"busy", Number(Unit::kWatts, device.busy_watts)}};
}

std::vector<Key> CatalogueReader::LinkKeys(Link& link) const {
  return {{"name", yaml_.Text(link.name)},
          {"bandwidth", Number(Unit::kBytesPerSecond, link.bandwidth)},
          {"latency", Number(Unit::kSeconds, link.latency)}};
}

absl::Status CatalogueReader::ReadPrice(const YAML::Node& node, const std::string& path,
                                        Price& price) const {
  price = {};  // A price over another one is a whole one, which may be of another kind.
  LAMINA_RETURN_IF_ERROR(
      yaml_.ReadKeys(node, path,
                     {{"kind", yaml_.Choice<PriceKind>({{"bought", PriceKind::kBought},
                                                        {"on_demand", PriceKind::kOnDemand},
                                                        {"spot", PriceKind::kSpot}},
                                                       price.kind)},
                      {"host", Number(Unit::kMoney, price.host), Presence::kOptional},
                      {"card", Number(Unit::kMoney, price.card), Presence::kOptional},
                      {"nic", Number(Unit::kMoney, price.nic), Presence::kOptional},
                      {"switch_port", Number(Unit::kMoney, price.switch_port), Presence::kOptional},
                      {"hour", Number(Unit::kMoneyPerHour, price.hour), Presence::kOptional}}));
  const bool bought = price.kind == PriceKind::kBought;
  const std::vector<std::string> kBought = {"host", "card", "nic", "switch_port"};
  const std::vector<std::string> kRented = {"hour"};
  for (const std::string& key : bought ? kBought : kRented) {
    if (!node[key]) {
      return yaml_.Error(node,
                         absl::StrCat(path, ".", key, ": missing; a ", bought ? "bought" : "rented",
                                      " machine has a price for it (0 if it has none)"));
    }
  }
  for (const std::string& key : bought ? kRented : kBought) {
    if (node[key]) {
      return yaml_.Error(node, absl::StrCat(path, ".", key, ": a ", bought ? "bought" : "rented",
                                            " machine has none; give either host, card, nic and "
                                            "switch_port (bought), or hour (rented)"));
    }
  }
  return absl::OkStatus();
}

std::vector<Key> CatalogueReader::MachineKeys(Machine& machine) const {
  return {{"name", yaml_.Text(machine.name)},
          {"device", yaml_.Text(machine.device)},
          {"devices", yaml_.Whole(machine.devices)},
          {"link", yaml_.Text(machine.link)},
          {"between", yaml_.Text(machine.between), Presence::kOptional},
          {"host", yaml_.Text(machine.host), Presence::kOptional},
          {"host_devices", yaml_.Whole(machine.host_devices), Presence::kOptional},
          {"host_link", yaml_.Text(machine.host_link), Presence::kOptional},
          {"price",
           [this, &machine](const YAML::Node& node, const std::string& path) {
             return ReadPrice(node, path, machine.price);
           }},
          {"idle", Number(Unit::kWatts, machine.idle_watts)},
          {"busy", Number(Unit::kWatts, machine.busy_watts)}};
}

std::vector<Key> CatalogueReader::ModelKeys(ModelShape& m) const {
  return {{"name", yaml_.Text(m.name)},
          {"architecture", yaml_.Text(m.architecture)},
          {"runs", RunsValue(m.runs)},
          {"layers", yaml_.Whole(m.layers)},
          {"width", yaml_.Whole(m.width)},
          {"query_heads", yaml_.Whole(m.query_heads)},
          {"kv_heads", yaml_.Whole(m.kv_heads)},
          {"head_dim", yaml_.Whole(m.head_dim)},
          {"hidden", yaml_.Whole(m.hidden)},
          {"mlp_matrices", yaml_.Whole(m.mlp_matrices), Presence::kOptional},
          {"experts", yaml_.Whole(m.experts), Presence::kOptional},
          {"experts_per_token", yaml_.Whole(m.experts_per_token), Presence::kOptional},
          {"vocabulary", yaml_.Whole(m.vocabulary)},
          {"tied_embeddings", yaml_.YesOrNo(m.tied_embeddings), Presence::kOptional},
          {"window", yaml_.Whole(m.window), Presence::kOptional},
          {"window_layers", yaml_.Whole(m.window_layers), Presence::kOptional},
          {"positions_max", yaml_.Whole(m.positions_max)},
          {"source", SourceName(m.source)}};
}

absl::Status CatalogueReader::CheckEconomics() const {
  const Economics& e = catalogue_.economics;
  if (e.years.value <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("economics.years: ", e.years.value,
                     " is not above 0; say over how many years a bought machine is written off"));
  }
  if (e.pue.value < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("economics.pue: ", e.pue.value,
                     " is below 1; a building takes the power of its machines at least"));
  }
  if (e.spares > kSparesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("economics.spares: ", e.spares, " is not in [0, ", kSparesMax, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const Device& d, const std::string& path) {
  for (const auto& [key, figure] :
       {std::pair("mfu", d.mfu), {"mbu_dense", d.mbu_dense}, {"mbu_attention", d.mbu_attention}}) {
    if (figure.value <= 0 || figure.value > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".", key, ": ", figure.value, " is not in (0, 1]"));
    }
  }
  if (d.capacity.value <= 0 || d.bandwidth.value <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": capacity and bandwidth are above 0"));
  }
  if (d.flops.count("bf16") == 0) {  // Zero ones are left out.
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".flops.bf16: 0 is not above 0; dense layers are bf16"));
  }
  return absl::OkStatus();
}

absl::Status CheckLink(const Link& link, const std::string& path) {
  if (link.bandwidth.value <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".bandwidth: ", link.bandwidth.value, " is not above 0"));
  }
  return absl::OkStatus();
}

absl::Status CatalogueReader::CheckMachine(const Machine& machine, const std::string& path) const {
  const auto missing = [&](absl::string_view key, const std::string& name, absl::string_view list) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".", key, ": '", name, "' is not under ", list));
  };
  if (catalogue_.FindDevice(machine.device) == nullptr) {
    return missing("device", machine.device, "devices");
  }
  if (catalogue_.FindLink(machine.link) == nullptr) {
    return missing("link", machine.link, "links");
  }
  if (machine.devices < 1 || machine.devices > kDevicesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".devices: ", machine.devices, " is not in [1, ", kDevicesMax, "]"));
  }
  if (machine.devices > 1 && catalogue_.FindLink(machine.between) == nullptr) {
    return missing("between", machine.between, "links; a machine with several devices has one");
  }
  if (machine.host.empty()) {
    return machine.host_link.empty()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(
                     path, ".host_link: the machine has no host; name its processors"));
  }
  const Device* host = catalogue_.FindDevice(machine.host);
  if (host == nullptr || host->kind != DeviceKind::kCpu) {
    return missing("host", machine.host, "devices of kind cpu");
  }
  if (catalogue_.FindLink(machine.host_link) == nullptr) {
    return missing("host_link", machine.host_link, "links; a machine with a host has one");
  }
  if (machine.host_devices < 1 || machine.host_devices > kDevicesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ".host_devices: ", machine.host_devices,
                                                   " is not in [1, ", kDevicesMax, "]"));
  }
  return absl::OkStatus();
}

absl::Status CatalogueReader::Check(const YAML::Node& root) const {
  const auto check_all = [&](const char* list, const auto& entries,
                             const auto& check) -> absl::Status {
    for (const auto& entry : entries) {
      const Place place = PlaceOf(root, list, entry.name);
      if (const absl::Status status = check(entry, place.path); !status.ok()) {
        return yaml_.Error(place.node, status.message());
      }
    }
    return absl::OkStatus();
  };
  if (const absl::Status status = CheckEconomics(); !status.ok()) {
    return yaml_.Error(root["economics"], status.message());
  }
  LAMINA_RETURN_IF_ERROR(check_all("devices", catalogue_.devices, CheckDevice));
  LAMINA_RETURN_IF_ERROR(check_all("links", catalogue_.links, CheckLink));
  LAMINA_RETURN_IF_ERROR(check_all("machines", catalogue_.machines,
                                   [this](const Machine& machine, const std::string& path) {
                                     return CheckMachine(machine, path);
                                   }));
  return check_all(
      "models", catalogue_.models,
      [](const ModelShape& model, const std::string& path) -> absl::Status {
        const absl::Status status = CheckShape(model);
        return status.ok() ? status
                           : absl::InvalidArgumentError(absl::StrCat(path, ".", status.message()));
      });
}

absl::Status CatalogueReader::TakeBase(const YAML::Node& node, const ReadBase& read_base) {
  std::string name;
  LAMINA_RETURN_IF_ERROR(yaml_.Text(name)(node, "base"));
  if (read_base == nullptr) {
    return yaml_.Error(node, "base: no file is read here; give a catalogue that stands by itself");
  }
  absl::StatusOr<Catalogue> base = read_base(name);
  if (!base.ok()) {
    return yaml_.Error(node, absl::StrCat("base: ", base.status().message()));
  }
  catalogue_ = *std::move(base);
  has_base_ = true;
  return absl::OkStatus();
}

// Prices of the base stay in its currency.
absl::Status CatalogueReader::ReadCurrency(const YAML::Node& node) {
  std::string currency;
  LAMINA_RETURN_IF_ERROR(yaml_.Text(currency)(node, "currency"));
  if (has_base_ && currency != catalogue_.economics.currency) {
    return yaml_.Error(node, absl::StrCat("currency: '", currency, "' is not the base's, ",
                                          catalogue_.economics.currency,
                                          "; leave it out and convert your prices"));
  }
  catalogue_.economics.currency = currency;
  return absl::OkStatus();
}

absl::Status CatalogueReader::Read(absl::string_view text, const ReadBase& read_base) {
  LAMINA_ASSIGN_OR_RETURN(const YAML::Node root, yaml_.Load(text));
  const ReadValue read_now = [](const YAML::Node&, const std::string&) { return absl::OkStatus(); };
  // The base, the currency and the sources come first, wherever they stand: everything else lies
  // over the one and names the others.
  if (root.IsMap() && root["base"]) {
    LAMINA_RETURN_IF_ERROR(TakeBase(root["base"], read_base));
  }
  if (root.IsMap() && root["currency"]) {
    LAMINA_RETURN_IF_ERROR(ReadCurrency(root["currency"]));
  }
  if (root.IsMap() && root["sources"]) {
    LAMINA_RETURN_IF_ERROR(ReadSources(root["sources"], "sources"));
  }
  uint32_t format = 0;
  const std::vector<Key> keys = {
      {"format", yaml_.Whole(format)},
      {"base", read_now, Presence::kOptional},
      {"currency", read_now},
      {"sources", read_now},
      {"economics",
       [this](const YAML::Node& node, const std::string& path) {
         return yaml_.ReadKeys(node, path,
                               has_base_ ? AllOptional(EconomicsKeys()) : EconomicsKeys());
       }},
      {"devices", List<Device>(catalogue_.devices, [this](Device& d) { return DeviceKeys(d); })},
      {"links", List<Link>(catalogue_.links, [this](Link& l) { return LinkKeys(l); })},
      {"machines",
       List<Machine>(catalogue_.machines, [this](Machine& m) { return MachineKeys(m); })},
      {"models",
       List<ModelShape>(catalogue_.models, [this](ModelShape& m) { return ModelKeys(m); }),
       Presence::kOptional}};
  LAMINA_RETURN_IF_ERROR(yaml_.ReadKeys(root, "", has_base_ ? AllOptional(keys) : keys));
  if (has_base_ && !root["format"]) {
    format = 1;
  }
  if (format != 1) {
    return yaml_.Error(root["format"], absl::StrCat("format: ", format, " is not 1, the only one"));
  }
  return Check(root);
}

}  // namespace

absl::StatusOr<Catalogue> ParseCatalogue(absl::string_view text, absl::string_view origin,
                                         const ReadBase& read_base) {
  Catalogue catalogue;
  try {
    LAMINA_RETURN_IF_ERROR(CatalogueReader(origin, catalogue).Read(text, read_base));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", error.what()));
  }
  return catalogue;
}

}  // namespace lamina::cost
