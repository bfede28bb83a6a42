// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "client/cli/bench_load.h"
#include "client/cli/bench_report.h"
#include "client/cli/bench_runner.h"
#include "client/cli/calibration_points.h"
#include "client/cli/sharegpt.h"
#include "cost/rates.h"
#include "tests/unit/client/fake_server.h"

namespace lamina::cli {
namespace {

using ::testing::HasSubstr;

TEST(BenchLoadTest, ClosedLoopsArriveAtTheStart) {
  const auto arrivals = MakeArrivals({.requests = 3, .input_tokens = 5, .output_tokens = 7});
  ASSERT_EQ(arrivals.size(), 3u);
  EXPECT_EQ(arrivals[2].at, 0);
  EXPECT_EQ(arrivals[2].input_tokens, 5u);
  EXPECT_EQ(arrivals[2].output_tokens, 7u);
}

TEST(BenchLoadTest, PoissonArrivalsHaveTheRateAndTheSpreadOfOne) {
  const auto arrivals = MakeArrivals({.requests = 20000, .rate = 50, .seed = 3});
  double sum = 0;
  double squares = 0;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double gap = ToSeconds(arrivals[i].at - arrivals[i - 1].at);
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / 19999;
  // The standard error of both is under 1%.
  EXPECT_NEAR(mean, 0.02, 0.001);
  EXPECT_NEAR(squares / 19999 / (mean * mean), 2.0, 0.1) << "an exponential's";
}

TEST(BenchLoadTest, TheSameSeedGivesTheSameLoad) {
  const LoadOptions options = {.requests = 10, .rate = 1, .seed = 4};
  EXPECT_EQ(MakeArrivals(options)[9].at, MakeArrivals(options)[9].at);
  EXPECT_EQ(RandomPrompt(4, 2, 30, 100), RandomPrompt(4, 2, 30, 100));
  EXPECT_NE(RandomPrompt(4, 2, 30, 100), RandomPrompt(4, 3, 30, 100));
  EXPECT_NE(RandomPrompt(4, 2, 30, 100), RandomPrompt(5, 2, 30, 100));
}

TEST(BenchLoadTest, PromptsUseTheWholeVocabulary) {
  const auto prompt = RandomPrompt(1, 0, 2000, 10);
  EXPECT_EQ(std::set<TokenId>(prompt.begin(), prompt.end()).size(), 10u);
}

TEST(BenchLoadTest, ReadsATraceAndSortsIt) {
  const auto trace = ParseTrace(
      "{\"arrival_s\": 1.5, \"input_tokens\": 3, \"output_tokens\": 4}\n\n"
      "{\"arrival_s\": 0, \"input_tokens\": 1, \"output_tokens\": 2}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ(trace->at(0).input_tokens, 1u);
  EXPECT_EQ(trace->at(1).at, Millis(1500));
}

TEST(BenchLoadTest, NamesTheLineOfABadTrace) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"", "no requests"},
           {"{", "line 1: not a JSON object"},
           {"\n[1]", "line 2: not a JSON object"},
           {"{\"arrival_s\": -1}", "arrival_s must be"},
           {"{\"input_tokens\": 0}", "input_tokens must be"},
           {"{\"output_tokens\": 1.5}", "output_tokens must be"},
           {"{\"output_tokens\": 1e99}", "output_tokens must be"},
           {"{\"arrival\": 1}", "unknown key 'arrival'"},
           {"{\"arrival_s\": 1}", "wants arrival_s"}}) {
    const auto trace = ParseTrace(text);
    EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(expected));
  }
}

TEST(BenchLoadTest, LeavesBadLinesOutWhereAsked) {
  std::vector<std::string> bad;
  const auto trace =
      ParseTrace("{\n{\"arrival_s\": 0, \"input_tokens\": 1, \"output_tokens\": 2}\n7\n", &bad);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->size(), 1u);
  ASSERT_EQ(bad.size(), 2u);
  EXPECT_THAT(bad[1], HasSubstr("line 3: not a JSON object"));
  EXPECT_THAT(std::string(ParseTrace("7", &bad).status().message()),
              HasSubstr("no line that is right"));
}

TEST(BenchLoadTest, PromptsOfAPrefixBeginAlike) {
  const auto trace = ParseTrace(
      "{\"arrival_s\": 0, \"input_tokens\": 9, \"output_tokens\": 2, \"prefix\": 1, "
      "\"prefix_tokens\": 6}");
  ASSERT_TRUE(trace.ok()) << trace.status();
  const std::vector<TokenId> a = PromptOf(1, 0, trace->at(0), 1000);
  const std::vector<TokenId> b = PromptOf(1, 1, trace->at(0), 1000);
  ASSERT_EQ(a.size(), 9u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 6, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 6, a.end(), b.begin() + 6));
  const auto error = [](const std::string& keys) {
    return std::string(
        ParseTrace("{\"arrival_s\": 0, \"input_tokens\": 9, \"output_tokens\": 2, " + keys + "}")
            .status()
            .message());
  };
  EXPECT_THAT(error("\"prefix\": 1"), HasSubstr("come together"));
  EXPECT_THAT(error("\"prefix\": 1, \"prefix_tokens\": 10"), HasSubstr("more than input_tokens"));
  EXPECT_THAT(error("\"prefix\": 0, \"prefix_tokens\": 1"), HasSubstr("line 1: prefix must be"));
}

absl::StatusOr<bool> AllFit(const Dialogue&) { return true; }

TEST(ShareGptTest, TakesQuestionsAndTheirAnswers) {
  const auto dialogues = ParseShareGpt(
      R"([{"conversations": [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "so."}]},
          {"conversations": [{"from": "gpt", "value": "a"}, {"from": "human", "value": "b"}]},
          {"conversations": []},
          {"conversations": [{"from": "user", "value": "2"}, {"from": "assistant", "value": "3"}]}])",
      9, AllFit);
  ASSERT_TRUE(dialogues.ok()) << dialogues.status();
  ASSERT_EQ(dialogues->size(), 2u);
  EXPECT_EQ(dialogues->at(0).turns[0].answer, "so.");
  EXPECT_EQ(dialogues->at(1).turns[0].question, "2");
  EXPECT_THAT(std::string(ParseShareGpt("{}", 1, AllFit).status().message()),
              HasSubstr("not a JSON list"));
  EXPECT_THAT(std::string(ParseShareGpt("[{}]", 1, AllFit).status().message()),
              HasSubstr("entry 1"));
  EXPECT_THAT(std::string(ParseShareGpt("[]", 1, AllFit).status().message()),
              HasSubstr("no dialogue"));
}

TEST(ShareGptTest, ReadsOnWhereDialoguesDoNotFit) {
  const std::string text = R"([
      {"conversations": [{"from": "human", "value": "long"}, {"value": "1"}]},
      {"conversations": [{"from": "human", "value": "a"}, {"value": "2"}]},
      {"conversations": [{"from": "human", "value": "long"}, {"value": "3"}]},
      {"conversations": [{"from": "human", "value": "b"}, {"value": "4"}]},
      {"conversations": [{"from": "human", "value": "c"}, {"value": "5"}]}])";
  const auto dialogues = ParseShareGpt(text, 2, [](const Dialogue& one) -> absl::StatusOr<bool> {
    return one.turns[0].question != "long";
  });
  ASSERT_TRUE(dialogues.ok()) << dialogues.status();
  ASSERT_EQ(dialogues->size(), 2u);
  EXPECT_EQ(dialogues->at(0).turns[0].question, "a");
  EXPECT_EQ(dialogues->at(1).turns[0].answer, "4");

  const auto none =
      ParseShareGpt(text, 2, [](const Dialogue&) -> absl::StatusOr<bool> { return false; });
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
  const auto lost = ParseShareGpt(text, 2, [](const Dialogue&) -> absl::StatusOr<bool> {
    return absl::UnavailableError("gone");
  });
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kUnavailable);
}

TEST(ShareGptTest, ATurnIsAskedBehindEarlierOnes) {
  const auto dialogues = ParseShareGpt(
      R"([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
                             {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"},
                             {"from": "gpt", "value": "e"}, {"from": "human", "value": "f"}]},
          {"conversations": [{"from": "human", "value": "g"}, {"from": "gpt", "value": "h"},
                             {"from": "human", "value": "i"}]}])",
      9, AllFit);
  ASSERT_TRUE(dialogues.ok()) << dialogues.status();
  ASSERT_EQ(dialogues->size(), 2u);
  ASSERT_EQ(dialogues->at(0).turns.size(), 2u) << "what follows is no question";
  EXPECT_EQ(PromptOfTurn(dialogues->at(0), 0), "a");
  EXPECT_EQ(PromptOfTurn(dialogues->at(0), 1), "a\n\nb\n\nc");
  EXPECT_EQ(dialogues->at(1).turns.size(), 1u) << "the last question has no answer";
}

TEST(BenchReportTest, GoodputIsTheRateWhereTheShareKeepsBothLatencies) {
  const auto times = [](Nanos first, Nanos second) {
    RequestTimes request(0);
    request.AddTokens(1, first);
    request.AddTokens(1, second);
    return request;
  };
  const planner::Slo slo = {.ttft_seconds = 0.010, .tpot_seconds = 0.005, .at = 0.6};
  BenchReport report(slo);
  report.AddFinished(1, times(Millis(10), Millis(15)));  // Both.
  report.AddFinished(1, times(Millis(9), Millis(12)));
  report.AddFinished(1, times(Millis(9), Millis(15)));  // 6 ms between.
  Json json = report.ToJson(2, {}, {})["slo"];
  EXPECT_NEAR(json["within_share"].get<double>(), 2.0 / 3, 1e-12);
  EXPECT_TRUE(json["met"].get<bool>());
  EXPECT_DOUBLE_EQ(json["goodput"].get<double>(), 1.5);
  report.AddFailed(absl::UnavailableError("gone"));
  json = report.ToJson(2, {}, {})["slo"];
  EXPECT_FALSE(json["met"].get<bool>());
  EXPECT_EQ(json["goodput"].get<double>(), 0);
  EXPECT_TRUE(BenchReport().ToJson(2, {}, {})["slo"].is_null());
}

TEST(BenchReportTest, SaysWhatTokensCostWhereThereArePrices) {
  client::ClusterStatus before;
  before.tokens_generated = 100;
  before.token_cost = {.compute_price = 3,
                       .memory_price = 1,
                       .compute = {.input = 2, .output = 5},
                       .input_tokens = 50};
  client::ClusterStatus after = before;
  after.tokens_generated = 1100;
  after.token_cost.compute.input += 1;
  after.token_cost.compute.output += 3;
  after.token_cost.memory = {.output = 4, .cached = 1};
  after.token_cost.input_tokens += 500;
  after.token_cost.cached_tokens += 100;

  const Json cost = BenchReport().ToJson(3600, before, after)["cost"];

  EXPECT_NEAR(cost["input"].get<double>(), 3 * 0.25, 1e-12);
  EXPECT_NEAR(cost["output"].get<double>(), 3 * 0.75 + 0.8, 1e-12);
  EXPECT_NEAR(cost["cached"].get<double>(), 0.2, 1e-12);
  EXPECT_NEAR(cost["per_million_output"].get<double>(), 1e3 * (3 * 0.75 + 0.8), 1e-9);
  EXPECT_NEAR(cost["per_million_cached"].get<double>(), 1e4 * 0.2, 1e-9);
  EXPECT_TRUE(BenchReport().ToJson(1, {}, {})["cost"].is_null());
}

// What nodes counted between two looks becomes points that cost::ParseCalibration() reads.
TEST(CalibrationPointsTest, AreSecondsOfALayerAndReadBack) {
  cost::ModelShape shape;
  shape.name = "small";
  shape.width = 64;
  shape.layers = 9;
  shape.query_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.hidden = 128;
  shape.mlp_matrices = 2;
  shape.experts = 4;
  shape.experts_per_token = 2;
  shape.vocabulary = 100;
  client::NodeStatus compute{.name = "c0", .role = "compute", .units = 100};
  compute.parts = {{"dense", 1}, {"head", 5}, {"wait_attention", 9}, {"chunks", 2}};
  client::NodeStatus memory{.name = "m0", .role = "memory", .kv_bytes_read = 1000, .units = 10};
  memory.parts = {{"attend", 1}};
  client::ClusterStatus before;
  before.nodes = {compute, memory};
  client::ClusterStatus after = before;
  after.nodes[0].units = 200;  // Ten steps.
  after.nodes[0].parts = {{"dense", 1.5}, {"head", 7}, {"wait_attention", 10.8}, {"chunks", 2}};
  after.nodes[1].units = 100;
  after.nodes[1].parts[0].second = 1.9;
  after.nodes[1].kv_bytes_read = 1000 + 90 * 64 * 128;
  after.links = {{.from = "c0", .to = "m0", .path = "shm", .latency_seconds = 1e-6}};
  after.nodes[1].bandwidth_bytes_per_second = 2e10;
  after.attention = "pairs: every node is fast at pairs of bf16";
  CalibrationPoints points;
  CalibrationWindow(before, after, shape).AppendDecode(8, 1, points);
  CalibrationWindow(after, after, shape).AppendDecode(8, 1, points);  // Nothing was run.
  ASSERT_EQ(points.slices.size(), 1u);
  EXPECT_NEAR(points.slices[0].seconds, 0.5 / 90, 1e-12);  // 100 slices are 90 layers.
  ASSERT_EQ(points.attentions.size(), 1u);
  EXPECT_NEAR(points.attentions[0].seconds, 0.01, 1e-12);
  EXPECT_NEAR(points.attentions[0].tokens, 64, 1e-9);
  ASSERT_EQ(points.heads.size(), 1u);
  EXPECT_NEAR(points.heads[0].seconds, 0.2, 1e-12);
  ASSERT_EQ(points.exchanges.size(), 1u);
  EXPECT_NEAR(points.exchanges[0].seconds, 0.01, 1e-12);
  // Several lanes' wait says nothing about the way there and back.
  CalibrationWindow(before, after, shape).AppendDecode(8, 2, points);
  EXPECT_EQ(points.exchanges.size(), 1u);
  EXPECT_TRUE(points.borders.empty());  // Attention takes longer than the other lane's slices.
  CalibrationWindow(before, after, shape).AppendDecode(8, 6, points);
  ASSERT_EQ(points.borders.size(), 1u);
  EXPECT_NEAR(points.borders[0].seconds, 0.18, 1e-12);
  after.nodes[0].parts[3].second = 2.9;
  CalibrationWindow(before, after, shape).AppendPrompts(32, 5, points);
  ASSERT_EQ(points.prompt_attentions.size(), 1u);
  EXPECT_NEAR(points.prompt_attentions[0].seconds, 0.02, 1e-12);

  const Json json = CalibrationToJson("here", "2026-11-25T00:00:00Z", shape, points, after);
  const auto read = cost::ParseCalibration(json.dump(), "test");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->slices.size(), 1u);
  EXPECT_NEAR(read->slices[0].rows.slope, 0.5 / 90 / 8, 1e-12);
  EXPECT_EQ(json["links"][0]["to"], "m0");
  EXPECT_EQ(json["reads"], Json::array({{{"node", "m0"}, {"bytes_per_second", 2e10}}}));
  EXPECT_EQ(json["t_attn"][0]["kernel"], "pairs");
  after.attention = "tensor, prompts canonical: as the cluster file says";
  EXPECT_EQ(CalibrationToJson("here", "2026-11-25T00:00:00Z", shape, points,
                              after)["t_attn"][0]["kernel"],
            "tensor");
  EXPECT_NEAR(read->border.At(8), 0.18, 1e-12);

  // What was measured counts, in whatever arithmetic.
  const cost::AttentionRates attention = cost::WithCalibration({}, *read, shape).attention;
  EXPECT_GT(attention.fixed.value + attention.seconds_per_byte.value, 0);

  // The model's own times go before the lines.
  const auto times = cost::WithCalibration({}, *read, shape).times;
  ASSERT_NE(times, nullptr);
  EXPECT_NEAR(times->slice.At(8), 0.5 / 90, 1e-12);
  EXPECT_NEAR(times->head.At(1), 0.2, 1e-12);
  EXPECT_NEAR(times->exchange.fixed, 0.01, 1e-12);
  EXPECT_NEAR(times->prompt_attention.slope * cost::PromptAttentionFlops(4.0 * 4 * 16, 32), 0.02,
              1e-12);
  shape.width = 128;
  EXPECT_EQ(cost::WithCalibration({}, *read, shape).times, nullptr);
}

// A step of nine layers has ten units.
TEST(CalibrationPointsTest, SlicesOfPromptsCountWhereEachRanInOneChunk) {
  cost::ModelShape shape;
  shape.layers = 9;
  client::ClusterStatus before;
  before.nodes = {{.name = "c0", .role = "compute"}};
  const auto slices = [&](uint64_t units) {
    client::ClusterStatus after = before;
    for (client::NodeStatus& node : after.nodes) {
      node.units = node.role == "compute" ? units : 1000;
      node.parts = {{"dense", 1.8}};
    }
    CalibrationPoints points;
    const bool one_chunk = CalibrationWindow(before, after, shape).AppendPrompts(256, 5, points);
    EXPECT_EQ(one_chunk, !points.slices.empty());
    return points.slices;
  };
  ASSERT_EQ(slices(50).size(), 1u);
  EXPECT_EQ(slices(50)[0].rows, 256);
  EXPECT_NEAR(slices(50)[0].seconds, 1.8 / 45, 1e-12);
  EXPECT_TRUE(slices(100).empty()) << "two chunks of 128";

  before.nodes = {{.name = "c0", .role = "compute", .replica = "r0", .layers = "0-8, KV heads 0-0"},
                  {.name = "c1", .role = "compute", .replica = "r0", .layers = "0-8, KV heads 1-1"},
                  {.name = "m0", .role = "memory"}};
  EXPECT_EQ(slices(50).size(), 2u) << "shards run the same steps";
  EXPECT_TRUE(slices(100).empty());
  before.nodes[0].layers = "0-3";
  before.nodes[1].layers = "4-8";
  EXPECT_EQ(slices(25).size(), 2u) << "stages share them";
  EXPECT_TRUE(slices(50).empty());
}

TEST(CalibrationPointsTest, LinesAreFittedToPointsOfSeveralSizes) {
  cost::ModelShape shape;
  shape.query_heads = 4;
  shape.kv_heads = 2;
  const auto file = [&](const CalibrationPoints& points) {
    return CalibrationToJson("here", "2026-11-25T00:00:00Z", shape, points, {});
  };
  CalibrationPoints points;
  const std::vector<CalibrationPoint> by_rows = {{.rows = 8, .tokens = 8, .seconds = 0.2},
                                                 {.rows = 8, .tokens = 8, .seconds = 0.2}};
  points.slices = points.heads = points.attentions = points.exchanges = points.borders = by_rows;
  points.prompt_attentions = {{.tokens = 32, .seconds = 0.02}};
  const Json same = file(points);
  for (auto* of_kind :
       {&points.slices, &points.heads, &points.attentions, &points.exchanges, &points.borders}) {
    of_kind->push_back({.rows = 16, .tokens = 16, .seconds = 0.4});
  }
  points.prompt_attentions.push_back({.tokens = 64, .seconds = 0.08});
  const Json json = file(points);
  for (const char* kind : {"t_slice", "t_head", "t_attn", "t_exchange", "t_border"}) {
    EXPECT_FALSE(same[kind][0].contains("fit")) << kind;
    EXPECT_NEAR(json[kind][0]["fit"]["slope_seconds"].get<double>(), 0.025, 1e-9) << kind;
    EXPECT_NEAR(json[kind][0]["fit"]["r2"].get<double>(), 1, 1e-9) << kind;
  }
  EXPECT_FALSE(same["t_prompt_attn"][0].contains("fit"));
  EXPECT_NEAR(json["t_prompt_attn"][0]["fit"]["slope_seconds"].get<double>(), 0.02 / 1024, 1e-12);
}

TEST(CalibrationPointsTest, ALoadIsTheMedianOfItsWindows) {
  std::vector<CalibrationPoints> windows(3);
  windows[0].slices = {{.rows = 8, .seconds = 2}, {.rows = 8, .seconds = 5}};
  windows[1].slices = {{.rows = 8, .seconds = 9}, {.rows = 8, .seconds = 4}};
  windows[2].slices = {{.rows = 8, .seconds = 3}, {.rows = 8, .seconds = 1}};
  windows[1].borders = {{.rows = 8, .seconds = 7}};  // The others hid it.
  CalibrationPoints points;
  points.slices = {{.rows = 1, .seconds = 1}};

  AppendMedians(windows, points);

  ASSERT_EQ(points.slices.size(), 3u);
  EXPECT_EQ(points.slices[1].seconds, 3);
  EXPECT_EQ(points.slices[2].seconds, 4);
  ASSERT_EQ(points.borders.size(), 1u);
  EXPECT_EQ(points.borders[0].seconds, 7);
  EXPECT_TRUE(points.heads.empty());
}

TEST(BenchReportTest, PercentilesAreNearestRanks) {
  std::vector<float> values;
  for (int i = 100; i >= 1; --i) {
    values.push_back(static_cast<float>(i));
  }
  EXPECT_EQ(Percentiles(values), (Json{{"p50", 50.0f}, {"p90", 90.0f}, {"p99", 99.0f}}));
  EXPECT_EQ(Percentiles({7.0f}), (Json{{"p50", 7.0f}, {"p90", 7.0f}, {"p99", 7.0f}}));
  EXPECT_EQ(Percentiles({}), (Json{{"p50", 0.0f}, {"p90", 0.0f}, {"p99", 0.0f}}));
}

TEST(BenchReportTest, TimesCountFromTheArrival) {
  RequestTimes times(Millis(100));
  times.AddTokens(1, Millis(150));
  times.AddTokens(2, Millis(170));
  EXPECT_EQ(times.tokens(), 3u);
  EXPECT_DOUBLE_EQ(times.ttft_ms(), 50);
  EXPECT_DOUBLE_EQ(times.tpot_ms(), 10);
  EXPECT_THAT(times.gaps_ms(), testing::ElementsAre(20.0f, 0.0f));
}

TEST(BenchReportTest, NodesAreDifferences) {
  const client::ClusterStatus before = {
      .nodes = {
          {.name = "m0", .bytes_sent = 100, .kv_bytes_read = 1000, .busy_seconds = 1, .reports = 1},
          {.name = "m2"}}};
  const client::ClusterStatus after = {.nodes = {{.name = "m0",
                                                  .role = "memory",
                                                  .bytes_sent = 150,
                                                  .bandwidth_bytes_per_second = 1000,
                                                  .kv_bytes_read = 3000,
                                                  .busy_seconds = 2},
                                                 {.name = "m1", .bytes_sent = 7},
                                                 {.name = "m2", .bytes_sent = 900}}};
  const Json nodes = BenchReport().ToJson(4, before, after)["nodes"];
  EXPECT_EQ(nodes[0]["busy_share"], 0.25);
  EXPECT_EQ(nodes[0]["bytes_sent"], 50);
  EXPECT_EQ(nodes[0]["bandwidth_share"], 0.5);
  EXPECT_EQ(nodes[1]["bytes_sent"], 7) << "a node that is new counts from nothing";
  EXPECT_EQ(nodes[2]["bytes_sent"], 0) << "one that was away has not sent all of it since";
}

class BenchRunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto client = client::Client::Connect({.server = server_.address()});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  client::FakeServer server_;
  std::unique_ptr<client::Client> client_;
};

TEST_F(BenchRunnerTest, RunsAClosedLoopWithinItsConcurrency) {
  const BenchRunOptions options = {
      .arrivals = MakeArrivals({.requests = 40, .input_tokens = 3, .output_tokens = 5}),
      .in_flight_max = 4,
      .vocabulary = 100};
  BenchRunner runner(options, *client_, RealClock());
  uint32_t most = 0;
  runner.Run([&](const BenchProgress& p) { most = std::max(most, p.in_flight); }, {});

  EXPECT_EQ(runner.report().finished(), 40u);
  EXPECT_EQ(runner.report().output_tokens(), 200u);
  EXPECT_LE(most, 4u);
  EXPECT_GT(runner.seconds(), 0);
}

TEST_F(BenchRunnerTest, RunsAnOpenLoopAtItsTimes) {
  const BenchRunOptions options = {
      .arrivals = {{.at = 0, .input_tokens = 1, .output_tokens = 1},
                   {.at = Millis(60), .input_tokens = 1, .output_tokens = 1}},
      .in_flight_max = 10,
      .vocabulary = 100};
  BenchRunner runner(options, *client_, RealClock());
  runner.Run([](const BenchProgress&) {}, {});
  EXPECT_EQ(runner.report().finished(), 2u);
  EXPECT_GE(runner.seconds(), 0.06);
}

TEST_F(BenchRunnerTest, DrawsAsAskedWithASeedForEachRequest) {
  const BenchRunOptions options = {
      .arrivals = MakeArrivals({.requests = 3, .input_tokens = 1, .output_tokens = 1}),
      .vocabulary = 100,
      .seed = 40,
      .temperature = 0.5f,
      .top_k = 7,
      .top_p = 0.25f};
  BenchRunner runner(options, *client_, RealClock());

  runner.Run([](const BenchProgress&) {}, {});

  const v1::Sampling sampling = server_.inference.last_request().sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_k(), 7u);
  EXPECT_EQ(sampling.top_p(), 0.25f);
  EXPECT_EQ(sampling.seed(), 42u) << "one request after the other: the last is the third";
}

// Arrivals and draws follow from `seed`, so that runs differ in their prompts alone.
TEST_F(BenchRunnerTest, PromptsHaveASeedOfTheirOwn) {
  const auto prompt = [&](uint64_t prompt_seed, uint64_t seed) {
    const BenchRunOptions options = {.arrivals = {{.input_tokens = 20, .output_tokens = 1}},
                                     .vocabulary = 100,
                                     .prompt_seed = prompt_seed,
                                     .seed = seed};
    BenchRunner runner(options, *client_, RealClock());
    runner.Run([](const BenchProgress&) {}, {});
    return server_.inference.last_request().tokens().SerializeAsString();
  };
  EXPECT_EQ(prompt(1, 7), prompt(1, 8));
  EXPECT_NE(prompt(1, 7), prompt(2, 7));
}

// One conversation is in flight here, so that its turns come before the next one's first.
TEST_F(BenchRunnerTest, TurnsOfAConversationComeOneAfterTheOther) {
  const BenchRunOptions options = {
      .arrivals = {{.input_tokens = 1, .output_tokens = 2, .text = "a"},
                   {.input_tokens = 3, .output_tokens = 2, .text = "a b", .follows = true},
                   {.input_tokens = 5, .output_tokens = 2, .text = "a b c", .follows = true},
                   {.input_tokens = 1, .output_tokens = 2, .text = "d"},
                   {.input_tokens = 3, .output_tokens = 2, .text = "d e", .follows = true}},
      .in_flight_max = 1,
      .vocabulary = 100,
      .prompt_seed = 7};
  BenchRunner runner(options, *client_, RealClock());
  uint32_t most = 0;
  runner.Run([&](const BenchProgress& p) { most = std::max(most, p.in_flight); }, {});
  EXPECT_EQ(runner.report().finished(), 5u);
  EXPECT_EQ(runner.report().output_tokens(), 10u);
  EXPECT_LE(most, 1u);
  const v1::GenerateRequest last = server_.inference.last_request();
  EXPECT_EQ(last.text(), "d e");
  EXPECT_EQ(last.cache_salt(), "bench 7") << "text is shared within a run's prompt seed";
}

// The file has the answer that the next turn builds on.
TEST_F(BenchRunnerTest, ATurnThatFailsLeavesTheNextOnesTheirs) {
  const BenchRunOptions options = {
      .arrivals = {{.input_tokens = 1, .output_tokens = 1, .text = "fail 3"},
                   {.input_tokens = 1, .output_tokens = 1, .text = "a", .follows = true}},
      .vocabulary = 100};
  BenchRunner runner(options, *client_, RealClock());
  runner.Run([](const BenchProgress&) {}, {});
  EXPECT_EQ(runner.report().failed(), 1u);
  EXPECT_EQ(runner.report().finished(), 1u);
}

TEST_F(BenchRunnerTest, CountsWhatFailed) {
  const BenchRunOptions options = {.arrivals = {{.input_tokens = 1, .output_tokens = 1}},
                                   .vocabulary = 100};
  server_.Stop();
  BenchRunner runner(options, *client_, RealClock());
  runner.Run([](const BenchProgress&) {}, {});
  EXPECT_EQ(runner.report().failed(), 1u);
  EXPECT_EQ(runner.report().first_error().code(), absl::StatusCode::kUnavailable);
}

TEST_F(BenchRunnerTest, WhatOthersCancelledHasFailed) {
  const BenchRunOptions options = {.arrivals = {{.input_tokens = 1, .output_tokens = 1}},
                                   .vocabulary = 100};
  server_.inference.refuses_with = grpc::StatusCode::CANCELLED;
  BenchRunner runner(options, *client_, RealClock());
  runner.Run([](const BenchProgress&) {}, {});
  EXPECT_EQ(runner.report().failed(), 1u);
  EXPECT_EQ(runner.report().first_error().code(), absl::StatusCode::kCancelled);
}

TEST_F(BenchRunnerTest, ACancellationStartsNoMore) {
  const BenchRunOptions options = {
      .arrivals = MakeArrivals({.requests = 10, .input_tokens = 1, .output_tokens = 1}),
      .vocabulary = 100};
  const client::Cancellation cancellation;
  cancellation.Cancel();
  BenchRunner runner(options, *client_, RealClock());
  runner.Run([](const BenchProgress&) {}, cancellation);
  EXPECT_EQ(runner.report().finished(), 0u);
}

}  // namespace
}  // namespace lamina::cli
