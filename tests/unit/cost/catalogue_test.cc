// SPDX-License-Identifier: Apache-2.0
#include "cost/catalogue.h"

#include "cost/quantity.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cost/catalogue_text.h"

namespace lamina::cost {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The error of the small catalogue with `from` replaced by `to`.
std::string ErrorWith(absl::string_view from, absl::string_view to) {
  const std::string text = absl::StrReplaceAll(kSmallCatalogue, {{from, to}});
  EXPECT_NE(text, kSmallCatalogue) << from << " is not in it";
  const absl::StatusOr<Catalogue> catalogue = ParseCatalogue(text, "small.yaml");
  EXPECT_EQ(catalogue.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(catalogue.status().message());
}

TEST(CatalogueTest, CataloguesOfTheTreeAreValid) {
  const Catalogue catalogue = CatalogueOfTree("default");
  for (const char* name : {"LLaMA-13B", "LLaMA-33B", "LLaMA-65B", "Llama-3-8B", "Llama-3-70B",
                           "OPT-30B", "Qwen2.5-7B", "Qwen3-32B", "Mixtral-8x7B", "gpt-oss-120b"}) {
    EXPECT_NE(catalogue.FindModel(name), nullptr) << name;
  }
  CatalogueOfTree("paper");
}

// docs/gpus.md: code for cards from compute capability 8.0 on.
TEST(CatalogueTest, CardsRunThatTheKernelsAreBuiltFor) {
  const Catalogue of_today = CatalogueOfTree("default");
  for (const char* card : {"A100-80G", "H100", "H200", "L40S", "RTX-4090"}) {
    EXPECT_TRUE(of_today.FindDevice(card)->runs.yes) << card;
  }
  const Catalogue of_the_paper = CatalogueOfTree("paper");
  for (const char* card : {"A100-80G", "A100-40G", "H100", "RTX-3090"}) {
    EXPECT_TRUE(of_the_paper.FindDevice(card)->runs.yes) << card;
  }
  EXPECT_FALSE(of_the_paper.FindDevice("Arc-A770")->runs.yes);
}

TEST(CatalogueTest, CardsHaveF32AndInt8OfTheirDataSheets) {
  const Catalogue catalogue = CatalogueOfTree("default");
  for (const char* card : {"A100-80G", "H100", "H200", "L40S", "RTX-4090"}) {
    const auto& flops = catalogue.FindDevice(card)->flops;
    for (const char* type : {"f32", "int8"}) {
      ASSERT_TRUE(flops.contains(type)) << card << " " << type;
      EXPECT_EQ(flops.at(type).provenance, Provenance::kDatasheet) << card << " " << type;
    }
    EXPECT_LT(flops.at("f32").value, flops.at("bf16").value) << card;
    EXPECT_GT(flops.at("int8").value, 1.9 * flops.at("bf16").value) << card;
  }
}

TEST(CatalogueTest, HasThePapersTable1) {
  const Catalogue catalogue = CatalogueOfTree("paper");
  struct Row {
    const char* machine;
    double price, capacity, bandwidth, per_gb, per_bandwidth;
  };
  for (const Row& row : {Row{"a100-80g", 17500, 80e9, 1935e9, 219, 9.04},
                         Row{"h100", 36500, 80e9, 3350e9, 456, 10.90},
                         Row{"rtx-3090", 1600, 24e9, 936.2e9, 67, 1.71},
                         Row{"rx-7900-xtx", 1000, 24e9, 960e9, 42, 1.04},
                         Row{"arc-a770", 350, 16e9, 560e9, 22, 0.63}}) {
    const Machine* machine = catalogue.FindMachine(row.machine);
    ASSERT_NE(machine, nullptr) << row.machine;
    const Device* device = catalogue.FindDevice(machine->device);
    EXPECT_EQ(machine->price.card.value, row.price);
    EXPECT_EQ(device->capacity.value, row.capacity);
    EXPECT_NEAR(device->bandwidth.value, row.bandwidth, 1);
    EXPECT_NEAR(row.price / (row.capacity / 1e9), row.per_gb, 0.5);
    EXPECT_NEAR(row.price / (row.bandwidth / 1e9), row.per_bandwidth, 0.01);
  }
}

TEST(CatalogueTest, EveryFigureHasProvenanceAndSource) {
  EXPECT_THAT(
      ErrorWith("{value: 100 GB, by: measured, source: here}", "{value: 100 GB, by: measured}"),
      AllOf(HasSubstr("small.yaml:16: devices.0.capacity.source: missing")));
  EXPECT_THAT(ErrorWith("{value: 100 GB, by: measured", "{value: 100 GB, by: guessed"),
              HasSubstr("'guessed' is not one of measured, datasheet, assumed"));
  EXPECT_THAT(ErrorWith("by: measured, source: here}\n    bandwidth",
                        "by: measured, source: hare}\n    bandwidth"),
              AllOf(HasSubstr("'hare' is not under sources"), HasSubstr("did you mean 'here'?")));
}

TEST(CatalogueTest, UnitsAndCurrenciesAreChecked) {
  EXPECT_THAT(ErrorWith("100 GB/s", "100 GBps"),
              AllOf(HasSubstr("devices.0.bandwidth.value"), HasSubstr("unknown unit 'GBps'"),
                    HasSubstr("GB/s")));
  EXPECT_THAT(ErrorWith("value: 100 GB,", "value: 100,"), HasSubstr("has no unit"));
  EXPECT_THAT(ErrorWith("value: 100 GB,", "value: lots,"),
              HasSubstr("does not begin with a number"));
  EXPECT_THAT(ErrorWith("5000 USD", "5000 EUR"),
              HasSubstr("is not in USD, the catalogue's currency; convert it"));
  EXPECT_THAT(ErrorWith("mfu: {value: 0.5", "mfu: {value: 1.5"), HasSubstr("is not in (0, 1]"));
}

TEST(CatalogueTest, FiguresThatDivideAreAboveZero) {
  EXPECT_THAT(ErrorWith("10 TFLOPS", "0 TFLOPS"),
              HasSubstr("devices.0.flops.bf16: 0 is not above"));
  EXPECT_THAT(ErrorWith("value: 10 GB/s", "value: 0 GB/s"),
              HasSubstr("links.0.bandwidth: 0 is not above 0"));
  EXPECT_THAT(ErrorWith("years: {value: 2", "years: {value: 0"),
              AllOf(HasSubstr("small.yaml:"), HasSubstr("economics.years: 0 is not above 0")));
  EXPECT_THAT(ErrorWith("pue: {value: 1.5", "pue: {value: 0.5"),
              HasSubstr("economics.pue: 0.5 is below 1"));
  EXPECT_THAT(ErrorWith("spares: 1", "spares: 65"),
              HasSubstr("economics.spares: 65 is not in [0, 64]"));
}

TEST(CatalogueTest, PricesAreComplete) {
  EXPECT_THAT(ErrorWith("      nic: {value: 500 USD, by: datasheet, source: here}\n", ""),
              HasSubstr("machines.0.price.nic: missing; a bought machine has a price for it"));
  EXPECT_THAT(ErrorWith("{kind: on_demand, hour: {value: 1.5 USD/h, by: datasheet, source: here}}",
                        "{kind: spot}"),
              HasSubstr("machines.1.price.hour: missing; a rented machine"));
  EXPECT_THAT(ErrorWith("kind: on_demand,",
                        "kind: on_demand, nic: {value: 1 USD, by: assumed, source: here},"),
              HasSubstr("machines.1.price.nic: a rented machine has none"));
}

TEST(CatalogueTest, NamesAreChecked) {
  EXPECT_THAT(ErrorWith("    capacity:", "    capacty:"),
              AllOf(HasSubstr("unknown key 'devices.0.capacty'"), HasSubstr("'capacity'?")));
  EXPECT_THAT(ErrorWith("device: chip\n    devices: 2", "device: chop\n    devices: 2"),
              HasSubstr("machines.0.device: 'chop' is not under devices"));
  EXPECT_THAT(ErrorWith("name: rented", "name: box"), HasSubstr("'box' is there twice"));
  EXPECT_THAT(ErrorWith("    between: wire\n", ""), HasSubstr("machines.0.between"));
  EXPECT_THAT(ErrorWith("format: 1", "format: 2"), HasSubstr("is not 1, the only one"));
  EXPECT_THAT(ErrorWith("format: 1", "format: 1\n---"), HasSubstr("a second YAML document"));
  EXPECT_THAT(ErrorWith("date: \"2026-06-01\"", "date: \"2026-13-01\""),
              HasSubstr("is not a date"));
  EXPECT_THAT(ErrorWith("value: 0.5, by: assumed", "value: [0.5, 0.5], by: assumed"),
              HasSubstr("give one share above 0, or 24 by hour of the day"));
}

TEST(CatalogueTest, HostsAreProcessorsWithALink) {
  const std::string between = "    between: wire\n";
  EXPECT_THAT(ErrorWith(between, between + "    host: chop\n    host_link: wire\n"),
              HasSubstr("machines.0.host: 'chop' is not under devices of kind cpu"));
  EXPECT_THAT(ErrorWith(between, between + "    host: chip\n"),
              HasSubstr("machines.0.host_link: '' is not under links"));
  EXPECT_THAT(ErrorWith(between, between + "    host_link: wire\n"),
              HasSubstr("machines.0.host_link: the machine has no host"));
  EXPECT_THAT(
      ErrorWith(between, between + "    host: chip\n    host_link: wire\n    host_devices: 99\n"),
      HasSubstr("machines.0.host_devices: 99 is not in [1, 64]"));
}

// The small catalogue, with a host in its first machine, and `text` laid over it.
absl::StatusOr<Catalogue> OverSmall(absl::string_view text) {
  const ReadBase read_base = [](const std::string& base) -> absl::StatusOr<Catalogue> {
    if (base != "small.yaml") {
      return absl::NotFoundError(absl::StrCat("cannot open '", base, "'"));
    }
    constexpr char kBetween[] = "    between: wire\n";
    return ParseCatalogue(
        absl::StrReplaceAll(
            kSmallCatalogue,
            {{kBetween, absl::StrCat(kBetween, "    host: chip\n    host_link: wire\n")}}),
        base);
  };
  return ParseCatalogue(text, "mine.yaml", read_base);
}

TEST(OverlayTest, APriceOfAMachineIsReplacedAndTheRestStays) {
  const absl::StatusOr<Catalogue> catalogue = OverSmall(R"(base: small.yaml
sources: {offer: {what: an offer, date: "2026-07-01"}}
economics: {load: {value: 0.9, by: assumed, source: here}}
machines:
  - {name: box, price: {kind: spot, hour: {value: 3 USD/h, by: datasheet, source: offer}}}
)");
  ASSERT_TRUE(catalogue.ok()) << catalogue.status();
  EXPECT_EQ(catalogue->machines.size(), 2u);
  const Machine& box = *catalogue->FindMachine("box");
  EXPECT_EQ(box.price.kind, PriceKind::kSpot);
  EXPECT_EQ(box.price.hour.value, 3);
  EXPECT_EQ(box.price.host.value, 0);
  EXPECT_EQ(box.devices, 2u);
  EXPECT_EQ(box.busy_watts.value, 100);
  EXPECT_EQ(AgeOfPrice(*catalogue, box.price, "2026-07-01").date, "2026-07-01");
  EXPECT_EQ(catalogue->FindMachine("rented")->price.hour.value, 1.5);
  EXPECT_EQ(catalogue->economics.load, std::vector<double>{0.9});
  EXPECT_EQ(catalogue->economics.years.value, 2);
}

TEST(OverlayTest, DevicesAreChangedByKeyAndAdded) {
  const absl::StatusOr<Catalogue> catalogue = OverSmall(R"(base: small.yaml
devices:
  - name: chip
    bandwidth: {value: 80 GB/s, by: measured, source: here}
    flops: {int8: {value: 20 TFLOPS, by: assumed, source: here}}
links:
  - {name: rope, bandwidth: {value: 1 GB/s, by: assumed, source: here}, latency: {value: 1 ms, by: assumed, source: here}}
)");
  ASSERT_TRUE(catalogue.ok()) << catalogue.status();
  ASSERT_EQ(catalogue->devices.size(), 1u);
  const Device& chip = catalogue->devices[0];
  EXPECT_EQ(chip.bandwidth.value, 80e9);
  EXPECT_EQ(chip.capacity.value, 100e9);
  EXPECT_EQ(chip.flops.at("bf16").value, 10e12);
  EXPECT_EQ(chip.flops.at("int8").value, 20e12);
  EXPECT_NE(catalogue->FindLink("rope"), nullptr);
  EXPECT_NE(catalogue->FindLink("wire"), nullptr);
}

TEST(OverlayTest, WhatCannotLieOverABaseIsNamed) {
  const auto error = [](absl::string_view text) {
    const absl::StatusOr<Catalogue> catalogue = OverSmall(text);
    EXPECT_EQ(catalogue.status().code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(catalogue.status().message());
  };
  EXPECT_EQ(error("base: other.yaml\n"), "mine.yaml:1: base: cannot open 'other.yaml'");
  EXPECT_THAT(error("base: small.yaml\ncurrency: EUR\n"),
              HasSubstr("mine.yaml:2: currency: 'EUR' is not the base's, USD"));
  EXPECT_THAT(error("base: small.yaml\nmachines: [{name: boxx, link: wire}]\n"),
              HasSubstr("mine.yaml:2: machines.0.device: missing"));
  EXPECT_THAT(error("base: small.yaml\nmachines: [{name: box, devises: 3}]\n"),
              HasSubstr("mine.yaml:2: unknown key 'machines.0.devises'"));
  EXPECT_THAT(error("base: small.yaml\nmachines: [{name: box, price: {kind: spot}}]\n"),
              HasSubstr("machines.0.price.hour: missing"));
  EXPECT_THAT(error("base: small.yaml\nmachines: [{name: box}, {name: box}]\n"),
              HasSubstr("machines.1.name: 'box' is there twice"));
  EXPECT_THAT(error("base: small.yaml\ndevices: [{name: chip, kind: gpu}]\n"),
              HasSubstr("(of the base) machines.box.host: 'chip' is not under devices of kind"));
  EXPECT_THAT(error("base: small.yaml\nformat: 2\n"), HasSubstr("is not 1, the only one"));
  EXPECT_THAT(std::string(ParseCatalogue("base: default\n", "mine.yaml").status().message()),
              HasSubstr("mine.yaml:1: base: no file is read here"));
}

TEST(CatalogueTest, OldPricesAreMarkedBySourceAndDate) {
  const absl::StatusOr<Catalogue> catalogue = ParseCatalogue(kSmallCatalogue, "small.yaml");
  ASSERT_TRUE(catalogue.ok()) << catalogue.status();
  const Price& bought = catalogue->FindMachine("box")->price;
  EXPECT_EQ(AgeOfPrice(*catalogue, bought, "2026-06-30").date, "2026-01-01");
  EXPECT_FALSE(AgeOfPrice(*catalogue, bought, "2026-06-30").old);  // 180 days.
  EXPECT_TRUE(AgeOfPrice(*catalogue, bought, "2026-07-01").old);
  EXPECT_FALSE(AgeOfPrice(*catalogue, catalogue->FindMachine("rented")->price, "2026-07-01").old);
}

TEST(QuantityTest, ReadsUnits) {
  EXPECT_EQ(*ParseQuantity("1935 GB/s", Unit::kBytesPerSecond, "USD"), 1935e9);
  EXPECT_EQ(*ParseQuantity("200Gbit/s", Unit::kBytesPerSecond, "USD"), 25e9);
  EXPECT_EQ(*ParseQuantity("2 GiB", Unit::kBytes, "USD"), 2147483648.0);
  EXPECT_EQ(*ParseQuantity("1e3 EUR", Unit::kMoney, "EUR"), 1000);
  EXPECT_EQ(*ParseQuantity("1000 EUR", Unit::kMoney, "EUR"), 1000);
  EXPECT_FALSE(ParseQuantity("-1 W", Unit::kWatts, "USD").ok());
  EXPECT_FALSE(ParseQuantity("1e400 W", Unit::kWatts, "USD").ok());
  EXPECT_EQ(*ParseQuantity("1e299 GB/s", Unit::kBytesPerSecond, "USD"), 1e299 * 1e9);
  EXPECT_THAT(ParseQuantity("1e300 GB/s", Unit::kBytesPerSecond, "USD").status().message(),
              HasSubstr("more than can be counted"));
  EXPECT_FALSE(ParseQuantity("0.5 GB", Unit::kNone, "USD").ok());
}

}  // namespace
}  // namespace lamina::cost
