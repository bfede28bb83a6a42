// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-paper CATALOGUE: the paper's tables and figures by the cost model, as JSON. The
// paper's own numbers stand in bench/paper.py, which prints both.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "bench/flags.h"
#include "cost/catalogue.h"
#include "cost/rates.h"
#include "cost/step_cost.h"

namespace lamina::cost {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAlpha = 3.27;  // Section 4.1: memory per dollar over an A100's, at least.
constexpr double kRowsMax = 4096;

// One of the paper's set-ups: cards that compute, and how many A100-40G attend for them.
struct Setup {
  const char* model;
  uint32_t cards;
  uint32_t attending;
};
constexpr Setup kSetups[] = {{"LLaMA-13B", 1, 3}, {"LLaMA-33B", 2, 6}};
constexpr double kContexts[] = {512, 1024, 2048, 4096};

class Paper {
 public:
  explicit Paper(const Catalogue& catalogue) : catalogue_(catalogue) {}

  Json Table1() const;
  Json Table3() const;
  Json Figure1() const;
  Json Figure12() const;
  Json Figure13() const;
  Json Figure17() const;
  Json Links() const;

 private:
  const ModelShape& Model(const char* name) const { return *catalogue_.FindModel(name); }
  const Device& Card(const char* name) const { return *catalogue_.FindDevice(name); }
  double CardPrice(const char* machine) const {
    return catalogue_.FindMachine(machine)->price.card.value;
  }
  // As much bandwidth of RTX 3090s costs that.
  double MemoryPrice(const Device& card) const {
    return CardPrice("rtx-3090") * card.bandwidth.value / Card("RTX-3090").bandwidth.value;
  }
  // One pool of `cards` cards.
  Cluster OnePool(const Device& card, uint32_t cards) const;
  // Two pools: `cards` cards, and memory nodes with `share` of such a card's memory and bandwidth
  // together.
  Cluster TwoPools(const Device& card, uint32_t cards, double share, uint32_t nodes,
                   uint32_t lanes) const;

  const Catalogue& catalogue_;
};

Cluster Paper::OnePool(const Device& card, uint32_t cards) const {
  return {.compute = RatesOf(card),
          .shard_link = RatesOf(*catalogue_.FindLink("pcie4-x16"), 1),
          .shards = cards,
          .policy = KvPolicy::kLocal};
}

Cluster Paper::TwoPools(const Device& card, uint32_t cards, double share, uint32_t nodes,
                        uint32_t lanes) const {
  Cluster cluster = OnePool(card, cards);
  cluster.policy = KvPolicy::kAttendRemote;
  cluster.memory = RatesOf(card);
  cluster.memory.capacity = share / nodes * cluster.memory.capacity;
  cluster.memory.attention.seconds_per_byte =
      cluster.memory.attention.seconds_per_byte / (share / nodes);
  cluster.memory_nodes = nodes;
  cluster.lanes = lanes;
  cluster.compute_link = RatesOf(*catalogue_.FindLink("200G-rdma"), 1);
  cluster.memory_link = cluster.compute_link;
  return cluster;
}

double MostRows(const ModelShape& shape, const Cluster& cluster, double context) {
  return std::min(kRowsMax, std::floor(KvTokensMax(shape, cluster).value / context));
}

// Tokens a second with `rows` rows; 0 where there are fewer rows than lanes.
double TokensPerSecond(const ModelShape& shape, const Cluster& cluster, double rows,
                       double context) {
  return rows < cluster.lanes
             ? 0
             : rows / StepOf(shape, cluster, {.rows = rows, .context = context}).step.value;
}

double MostTokensPerSecond(const ModelShape& shape, const Cluster& cluster, double context) {
  return TokensPerSecond(shape, cluster, MostRows(shape, cluster, context), context);
}

Json Paper::Table1() const {
  Json rows = Json::array();
  for (const char* name : {"a100-80g", "h100", "rtx-3090", "rx-7900-xtx", "arc-a770"}) {
    const Machine& machine = *catalogue_.FindMachine(name);
    const Device& device = *catalogue_.FindDevice(machine.device);
    const double price = machine.price.card.value;
    rows.push_back({{"device", device.name},
                    {"price", price},
                    {"gigabytes", device.capacity.value / 1e9},
                    {"gigabytes_per_second", device.bandwidth.value / 1e9},
                    {"price_per_gigabyte", price / (device.capacity.value / 1e9)},
                    {"price_per_bandwidth", price / (device.bandwidth.value / 1e9)}});
  }
  return rows;
}

Json Paper::Table3() const {
  Json rows = Json::array();
  const DeviceRates a100 = RatesOf(Card("A100-40G"));
  const LinkRates ring = RatesOf(*catalogue_.FindLink("pcie4-x16"), 1);
  constexpr std::pair<const char*, uint32_t> kModels[] = {
      {"LLaMA-13B", 1}, {"LLaMA-33B", 2}, {"LLaMA-65B", 4}};
  for (const auto& [model, cards] : kModels) {
    Json values = Json::array();
    for (const double batch : {128.0, 256.0, 512.0, 1024.0}) {
      values.push_back(BandwidthNeeded(Model(model), a100, ring, cards, batch).value / 1e9);
    }
    rows.push_back({{"model", model}, {"cards", cards}, {"gigabytes_per_second", values}});
  }
  return rows;
}

// Throughput per cost over that of one pool, at the best ratio of memory to compute.
Json Paper::Figure1() const {
  Json rows = Json::array();
  constexpr std::pair<const char*, uint32_t> kModels[] = {
      {"LLaMA-13B", 1}, {"LLaMA-33B", 2}, {"LLaMA-65B", 4}};
  for (const char* card : {"A100-80G", "A100-40G"}) {
    for (const auto& [model, cards] : kModels) {
      // Each side chooses its cards; the smallest number that holds the weights is where it begins.
      double alone = 0;
      double best = 0;
      double best_share = 0;
      for (uint32_t n = cards; n <= 8; n *= 2) {
        const Cluster one = OnePool(Card(card), n);
        alone = std::max(alone, MostTokensPerSecond(Model(model), one, 512) / n);
        for (double spent = 0.05; spent <= 8; spent *= 1.1) {
          Cluster two = TwoPools(Card(card), n, kAlpha * spent * n, 1, 2);
          two.compute_link = {};  // The figure is without a network.
          two.memory_link = {};
          const double tokens = MostTokensPerSecond(Model(model), two, 512) / (n * (1 + spent));
          best_share = tokens > best ? spent : best_share;
          best = std::max(best, tokens);
        }
      }
      rows.push_back({{"card", card},
                      {"model", model},
                      {"gain", alone > 0 ? Json(best / alone) : Json()},
                      {"memory_over_compute_cost", best_share}});
    }
  }
  return rows;
}

Json Paper::Figure12() const {
  Json rows = Json::array();
  const Device& card = Card("A100-40G");
  for (const Setup& setup : kSetups) {
    const ModelShape& model = Model(setup.model);
    for (const double context : kContexts) {
      const Cluster one = OnePool(card, setup.cards);
      const Cluster plain = TwoPools(card, setup.cards, setup.attending, setup.attending, 1);
      Cluster pipelined = plain;
      pipelined.lanes = 2;
      Json points = Json::array();
      for (double batch = 2; batch <= MostRows(model, plain, context); batch *= 2) {
        const bool fits = batch <= MostRows(model, one, context);
        points.push_back(
            {{"batch", batch},
             {"one_pool", fits ? Json(TokensPerSecond(model, one, batch, context)) : Json()},
             {"two_pools", TokensPerSecond(model, plain, batch, context)},
             {"pipelined", TokensPerSecond(model, pipelined, batch, context)}});
      }
      rows.push_back({{"model", setup.model},
                      {"context", context},
                      {"batch_one_pool", MostRows(model, one, context)},
                      {"batch_two_pools", MostRows(model, plain, context)},
                      {"most_one_pool", MostTokensPerSecond(model, one, context)},
                      {"most_two_pools", MostTokensPerSecond(model, plain, context)},
                      {"most_pipelined", MostTokensPerSecond(model, pipelined, context)},
                      {"points", points}});
    }
  }
  return rows;
}

// Most tokens a second for a dollar of cards. Memory nodes are A100-40G that cost what as much
// bandwidth of an RTX 3090 does.
Json Paper::Figure13() const {
  Json rows = Json::array();
  const Device& card = Card("A100-40G");
  const double compute_price = CardPrice("a100-80g");
  const double memory_price = MemoryPrice(card);
  for (const Setup& setup : kSetups) {
    const ModelShape& model = Model(setup.model);
    for (const double context : kContexts) {
      const double one = MostTokensPerSecond(model, OnePool(card, setup.cards), context) /
                         (setup.cards * compute_price);
      const Cluster pools = TwoPools(card, setup.cards, setup.attending, setup.attending, 2);
      const double two = MostTokensPerSecond(model, pools, context) /
                         (setup.cards * compute_price + setup.attending * memory_price);
      rows.push_back({{"model", setup.model},
                      {"context", context},
                      {"one_pool", one},
                      {"two_pools", two},
                      {"gain", one > 0 ? Json(two / one) : Json()}});
    }
  }
  return rows;
}

// Latency against throughput on LLaMA-33B, at the mean lengths of ShareGPT.
Json Paper::Figure17() const {
  constexpr double kInput = 161;
  constexpr double kOutput = 338;
  const ModelShape& model = Model("LLaMA-33B");
  const Device& card = Card("A100-40G");
  const double memory_price = MemoryPrice(card);
  Json rows = Json::array();
  const auto add = [&](const std::string& name, const Cluster& cluster, double price) {
    Json points = Json::array();
    const double context = kInput + kOutput / 2;
    const double most = MostRows(model, cluster, context);
    for (double batch = 2; batch <= most; batch *= 1.5) {
      const StepLoad load = {.rows = std::floor(batch),
                             .context = context,
                             .prompt_tokens = std::floor(batch) * kInput / kOutput,
                             .prompt_length = kInput};
      const double step = StepOf(model, cluster, load).step.value;
      points.push_back({{"batch", load.rows},
                        {"tokens_per_second", load.rows / step},
                        {"seconds_per_token", step},
                        {"tokens_per_second_per_dollar", load.rows / step / price}});
    }
    rows.push_back({{"name", name}, {"price", price}, {"points", points}});
  };
  const double compute_price = CardPrice("a100-80g");
  add("2 A100", OnePool(card, 2), 2 * compute_price);
  add("4 A100", OnePool(card, 4), 4 * compute_price);
  for (const uint32_t nodes : {2u, 4u, 6u}) {
    add("2 A100 + " + std::to_string(nodes) + " that attend", TwoPools(card, 2, nodes, nodes, 2),
        2 * compute_price + nodes * memory_price);
  }
  return rows;
}

// Figure 13's set-ups over links of several speeds, and one pool of every number of cards that one
// host holds. Prices are of the cards; bench/paper.py adds hosts.
Json Paper::Links() const {
  Json rows = Json::array();
  const Device& card = Card("A100-40G");
  const double compute_price = CardPrice("a100-80g");
  for (const Setup& setup : kSetups) {
    const ModelShape& model = Model(setup.model);
    for (const double context : kContexts) {
      Json one_pool = Json::array();
      for (uint32_t n = setup.cards; n <= 8; n *= 2) {
        one_pool.push_back(
            {{"price", n * compute_price},
             {"tokens_per_second", MostTokensPerSecond(model, OnePool(card, n), context)}});
      }
      Json two_pools = Json::array();
      for (const char* link : {"100G-rdma", "200G-rdma", "400G-rdma"}) {
        Cluster pools = TwoPools(card, setup.cards, setup.attending, setup.attending, 2);
        pools.compute_link = RatesOf(*catalogue_.FindLink(link), 1);
        pools.memory_link = pools.compute_link;
        two_pools.push_back(
            {{"link", link}, {"tokens_per_second", MostTokensPerSecond(model, pools, context)}});
      }
      const double price = setup.cards * compute_price + setup.attending * MemoryPrice(card);
      rows.push_back({{"model", setup.model},
                      {"context", context},
                      {"one_pool", one_pool},
                      {"two_pools", two_pools},
                      {"two_pools_price", price}});
    }
  }
  return rows;
}

int Main(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const absl::StatusOr<Catalogue> catalogue = ParseCatalogue(text.str(), path);
  if (!catalogue.ok()) {
    std::fprintf(stderr, "lamina-bench-paper: %s\n",
                 std::string(catalogue.status().message()).c_str());
    return 1;
  }
  const Paper paper(*catalogue);
  const Json all = {{"table1", paper.Table1()},     {"table3", paper.Table3()},
                    {"figure1", paper.Figure1()},   {"figure12", paper.Figure12()},
                    {"figure13", paper.Figure13()}, {"figure17", paper.Figure17()},
                    {"links", paper.Links()}};
  std::printf("%s\n", all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace lamina::cost

int main(int argc, char** argv) {
  CLI::App app("The paper's tables and figures by the cost model, as JSON", "lamina-bench-paper");
  std::string catalogue;
  app.add_option("CATALOGUE", catalogue, "catalogue of devices (YAML)")->required();
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  return lamina::cost::Main(catalogue);
}
