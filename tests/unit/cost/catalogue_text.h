// SPDX-License-Identifier: Apache-2.0
//
// Catalogues for tests: the files of the tree, and a small one to break.

#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cost/catalogue.h"
#include "gtest/gtest.h"
#include "tests/support/source_path.h"

namespace lamina::cost {

inline std::string CatalogueText(const std::string& name) {
  std::ifstream file(test_support::SourcePath(absl::StrCat("cost/catalogues/", name, ".yaml")));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline Catalogue CatalogueOfTree(const std::string& name) {
  const absl::StatusOr<Catalogue> catalogue = ParseCatalogue(CatalogueText(name), name);
  EXPECT_TRUE(catalogue.ok()) << catalogue.status();
  return *catalogue;
}

inline constexpr char kSmallCatalogue[] = R"(format: 1
currency: USD
sources:
  here: {what: made up for tests, date: "2026-06-01"}
  old: {what: made up for tests, date: "2026-01-01"}
economics:
  years: {value: 2, by: assumed, source: here}
  load: {value: 0.5, by: assumed, source: here}
  electricity: {value: 0.2 USD/kWh, by: assumed, source: here}
  pue: {value: 1.5, by: assumed, source: here}
  spares: 1
devices:
  - name: chip
    kind: cpu
    runs: {yes: yes, why: test}
    capacity: {value: 100 GB, by: measured, source: here}
    bandwidth: {value: 100 GB/s, by: measured, source: here}
    flops: {bf16: {value: 10 TFLOPS, by: measured, source: here}}
    mfu: {value: 0.5, by: measured, source: here}
    mbu_dense: {value: 1, by: measured, source: here}
    mbu_attention: {value: 0.8, by: measured, source: here}
    idle: {value: 100 W, by: measured, source: here}
    busy: {value: 300 W, by: measured, source: here}
links:
  - {name: wire, bandwidth: {value: 10 GB/s, by: datasheet, source: here}, latency: {value: 10 us, by: assumed, source: here}}
machines:
  - name: box
    device: chip
    devices: 2
    link: wire
    between: wire
    price:
      kind: bought
      host: {value: 5000 USD, by: datasheet, source: here}
      card: {value: 2000 USD, by: datasheet, source: old}
      nic: {value: 500 USD, by: datasheet, source: here}
      switch_port: {value: 500 USD, by: datasheet, source: here}
    idle: {value: 50 W, by: measured, source: here}
    busy: {value: 100 W, by: measured, source: here}
  - name: rented
    device: chip
    devices: 1
    link: wire
    price: {kind: on_demand, hour: {value: 1.5 USD/h, by: datasheet, source: here}}
    idle: {value: 0 W, by: assumed, source: here}
    busy: {value: 0 W, by: assumed, source: here}
)";

}  // namespace lamina::cost
