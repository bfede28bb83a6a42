// SPDX-License-Identifier: Apache-2.0
#include "coordinator/kv_makers.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace lamina::coordinator {
namespace {

using Kinds = std::map<std::string, std::string>;  // By node.

uint64_t MakersOf(const Kinds& kinds, const std::vector<plan::Stage>& stages = {}) {
  plan::EpochConfig config;
  for (const auto& [node, kind] : kinds) {
    config.compute_nodes.push_back(node);
  }
  config.stages = stages;
  return KvMakersOf(config, [&kinds](const std::string& node) { return kinds.at(node); });
}

TEST(KvMakersTest, NodesOfOneKindAreOneHoweverMany) {
  const uint64_t one = MakersOf({{"c0", "A"}});
  EXPECT_NE(one, 0u);
  EXPECT_EQ(MakersOf({{"c1", "A"}}), one);
  EXPECT_EQ(MakersOf({{"c0", "A"}, {"c1", "A"}}), one);
  EXPECT_NE(MakersOf({{"c0", ""}}), 0u);
}

TEST(KvMakersTest, AnotherKindIsAnother) {
  const uint64_t one = MakersOf({{"c0", "A"}});
  const uint64_t other = MakersOf({{"c0", "B"}});
  const uint64_t both = MakersOf({{"c0", "A"}, {"c1", "B"}});
  EXPECT_NE(one, other);
  EXPECT_NE(both, one);
  EXPECT_NE(both, other);
  EXPECT_EQ(MakersOf({{"c0", "B"}, {"c1", "A"}}), both) << "each is a replica by itself";
  EXPECT_EQ(MakersOf({{"c0", "B"}, {"c1", "A"}, {"c2", "B"}}), both);
}

TEST(KvMakersTest, LayersCountWhereKindsDiffer) {
  const std::vector<plan::Stage> even = {{.first_layer = 0, .layers = 4},
                                         {.first_layer = 4, .layers = 4}};
  const std::vector<plan::Stage> uneven = {{.first_layer = 0, .layers = 6},
                                           {.first_layer = 6, .layers = 2}};
  const Kinds alike = {{"c0", "A"}, {"c1", "A"}};
  const Kinds unlike = {{"c0", "A"}, {"c1", "B"}};
  const Kinds swapped = {{"c0", "B"}, {"c1", "A"}};
  EXPECT_EQ(MakersOf(alike, even), MakersOf(alike, uneven));
  EXPECT_EQ(MakersOf(alike, even), MakersOf({{"c0", "A"}}));
  EXPECT_NE(MakersOf(unlike, even), MakersOf(unlike, uneven));
  EXPECT_NE(MakersOf(unlike, even), MakersOf(swapped, even));
}

}  // namespace
}  // namespace lamina::coordinator
