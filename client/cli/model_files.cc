// SPDX-License-Identifier: Apache-2.0
//
// lamina split, lamina inspect: what is in a model's files. Local; no server needed.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "model/generation_config.h"
#include "model/inspect.h"
#include "model/model.h"
#include "model/shard.h"
#include "model/splitter.h"
#include "plan/stages.h"

namespace lamina::cli {
namespace {

constexpr char kSplitExamples[] = R"(  lamina split models/smollm2-135m-instruct.gguf
  lamina split ~/models/pythia-160m --json
  lamina split models/smollm2-135m-instruct.gguf --shards 2
The model is cut at every attention. What must be carried across it, besides its own output, is the
context: the minimum in bytes per token. What runs while attention is away is listed next to it.
With --shards: what each of so many nodes holds by tensor parallelism (compute.N.shard), and what it
puts to the others of a token.
)";
constexpr char kInspectExamples[] = R"(  lamina inspect models/smollm2-135m-instruct.gguf
  lamina inspect ~/models/opt-125m --tensors
  lamina inspect model.gguf --json
MODEL is a GGUF file, or a folder with config.json and safetensors.
)";

Json SliceToJson(const model::Graph& graph, const model::SplitModel& split, uint32_t index) {
  const model::Slice& slice = split.slices[index];
  Json edges = Json::array();
  for (const model::ValueId id : slice.context) {
    edges.push_back(
        {{"name", graph.values[id].name}, {"bytes_per_token", graph.values[id].bytes_per_token()}});
  }
  Json overlapped = Json::array();
  for (size_t i = slice.ops_before_send; i < slice.ops.size(); ++i) {
    overlapped.push_back(graph.ops[slice.ops[i]].name);
  }
  return {{"after_attention", graph.ops[slice.attention].name},
          {"edges", edges},
          {"bytes_per_token", split.ContextBytesPerToken(graph, index)},
          {"beside_attention", overlapped}};
}

absl::StatusOr<Json> ShardsToJson(const model::Graph& graph, uint32_t count) {
  LAMINA_ASSIGN_OR_RETURN(const model::ShardWidths widths, model::ShardWidthsOf(graph));
  LAMINA_ASSIGN_OR_RETURN(const plan::ShardSplit split,
                          plan::SplitShards({.heads = widths.heads,
                                             .columns = widths.columns,
                                             .head = widths.head_weights,
                                             .column = widths.column_weights},
                                            std::vector<std::string>(count)));
  Json shards = Json::array();
  for (const ShardPart& part : split.parts) {
    LAMINA_ASSIGN_OR_RETURN(const model::Graph shard, model::ShardGraph(graph, part));
    uint64_t put = 0;
    for (const model::Op& op : shard.ops) {
      if (std::holds_alternative<model::ReduceOp>(op.body)) {
        put += shard.values[op.output].bytes_per_token() * (count - 1);
      }
    }
    shards.push_back({{"shard", part.index},
                      {"kv_heads", part.heads},
                      {"mlp_columns", part.columns},
                      {"linear_bytes", model::LinearBytes(shard, /*head=*/part.index == 0)},
                      {"put_bytes_per_token", put}});
  }
  return shards;
}

absl::StatusOr<Json> Split(const std::string& path, uint32_t shards) {
  LAMINA_ASSIGN_OR_RETURN(const model::Model model, model::OpenModel(path));
  LAMINA_ASSIGN_OR_RETURN(const model::SplitModel split, model::SplitAtAttention(model.graph));
  Json context = Json::array();
  for (uint32_t i = 0; i + 1 < split.slices.size(); ++i) {
    context.push_back(SliceToJson(model.graph, split, i));
  }
  Json json{{"layers", model.graph.attention_count()},
            {"slices", split.slices.size()},
            {"context", context}};
  if (shards > 1) {
    LAMINA_ASSIGN_OR_RETURN(json["shards"], ShardsToJson(model.graph, shards));
  }
  return json;
}

void PrintShards(const Json& shards) {
  std::printf("\n%s\n",
              Terminal::Output()
                  .Bold(absl::StrFormat("%-6s %9s %12s %16s %22s", "shard", "KV heads",
                                        "MLP columns", "linear weights", "puts of a token"))
                  .c_str());
  for (const Json& shard : shards) {
    std::printf("%s\n",
                absl::StrFormat("%-6d %9d %12d %16s %22s", shard["shard"].get<int>(),
                                shard["kv_heads"].get<int>(), shard["mlp_columns"].get<int>(),
                                FormatBytes(shard["linear_bytes"].get<uint64_t>()),
                                FormatBytes(shard["put_bytes_per_token"].get<uint64_t>()))
                    .c_str());
  }
}

void PrintSplit(const Json& split) {
  std::printf("%llu attentions, %llu slices\n\n",
              static_cast<unsigned long long>(split["layers"].get<uint64_t>()),
              static_cast<unsigned long long>(split["slices"].get<uint64_t>()));
  std::printf("%s\n", Terminal::Output()
                          .Bold(absl::StrFormat("%-24s %14s  %-32s %s", "after attention",
                                                "bytes/token", "context", "overlapped"))
                          .c_str());
  for (const Json& entry : split["context"]) {
    std::vector<std::string> names;
    for (const Json& edge : entry["edges"]) {
      names.push_back(edge["name"].get<std::string>());
    }
    const auto overlapped = entry["beside_attention"].get<std::vector<std::string>>();
    std::printf("%s\n",
                absl::StrFormat("%-24s %14d  %-32s %s", entry["after_attention"].get<std::string>(),
                                entry["bytes_per_token"].get<uint64_t>(), absl::StrJoin(names, " "),
                                overlapped.empty() ? "-" : absl::StrJoin(overlapped, " "))
                    .c_str());
  }
}

Json SummaryToJson(const model::ModelSummary& summary) {
  const model::ModelConfig& config = summary.config;
  Json types = Json::array();
  for (const model::TypeSummary& type : summary.types) {
    types.push_back({{"type", type.type},
                     {"tensors", type.tensors},
                     {"elements", type.elements},
                     {"bytes", type.stored_bytes}});
  }
  Json tensors = Json::array();
  for (const model::TensorInfo& tensor : summary.tensor_list) {
    tensors.push_back({{"name", tensor.name},
                       {"type", tensor.type},
                       {"shape", tensor.shape},
                       {"bytes", tensor.stored_bytes}});
  }
  return {{"architecture", config.architecture},
          {"name", config.name},
          {"layers", config.layers},
          {"width", config.width},
          {"ffn_width", config.ffn_width},
          {"query_heads", config.query_heads},
          {"kv_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"vocabulary", config.vocabulary},
          {"positions_max", config.positions_max},
          {"tied_embeddings", config.tied_embeddings},
          {"parameters", summary.parameters},
          {"stored_bytes", summary.stored_bytes},
          {"bf16_bytes", summary.bf16_bytes},
          {"experts", config.experts},
          {"experts_per_token", config.experts_per_token},
          {"window", config.window},
          {"window_layers", config.WindowLayers()},
          {"kv_bytes_per_token", summary.kv_bytes_per_token},
          {"kv_int8_bytes_per_token", summary.kv_int8_bytes_per_token},
          {"kv_bytes_kept", summary.kv_bytes_kept},
          {"kv_bytes_read", summary.kv_bytes_read},
          {"types", types},
          {"tensors", tensors}};
}

void PrintSummary(const model::ModelSummary& summary, bool list_tensors) {
  const model::ModelConfig& c = summary.config;
  std::string text = absl::StrFormat(
      "%s, architecture %s\n"
      "shape        %d layers, width %d, feed-forward %d, %d query and %d KV heads of %d\n"
      "vocabulary   %d%s\n"
      "positions    %d\n"
      "parameters   %d\n"
      "files        %s in %d tensors\n"
      "as bf16      %s on a compute node\n"
      "KV           %s per token, %s with kv int8; of %d tokens %s are kept, and %s read for the "
      "next one\n",
      c.name, c.architecture, c.layers, c.width, c.ffn_width, c.query_heads, c.kv_heads, c.head_dim,
      c.vocabulary, c.tied_embeddings ? ", embeddings tied" : "", c.positions_max,
      summary.parameters, FormatBytes(summary.stored_bytes), summary.tensors,
      FormatBytes(summary.bf16_bytes), FormatBytes(summary.kv_bytes_per_token),
      FormatBytes(summary.kv_int8_bytes_per_token), c.positions_max,
      FormatBytes(summary.kv_bytes_kept), FormatBytes(summary.kv_bytes_read));
  if (c.experts != 0) {
    absl::StrAppend(&text, absl::StrFormat("experts      %d a layer, %d of them for a token\n",
                                           c.experts, c.experts_per_token));
  }
  if (c.window != 0) {
    absl::StrAppend(&text, absl::StrFormat("window       %d tokens in %d of the layers\n", c.window,
                                           c.WindowLayers()));
  }
  for (const model::TypeSummary& type : summary.types) {
    absl::StrAppend(&text, absl::StrFormat("%-12s %d tensors, %s\n", type.type, type.tensors,
                                           FormatBytes(type.stored_bytes)));
  }
  if (list_tensors) {
    for (const model::TensorInfo& tensor : summary.tensor_list) {
      absl::StrAppend(&text, absl::StrFormat("%-40s %-6s [%s]\n", tensor.name, tensor.type,
                                             absl::StrJoin(tensor.shape, ", ")));
    }
  }
  std::printf("%s", text.c_str());
}

int RunSplit(const Invocation& invocation, const std::string& path, uint32_t shards) {
  const absl::StatusOr<Json> split = Split(path, shards);
  if (!split.ok()) {
    return Fail(split.status());
  }
  if (invocation.json) {
    PrintJson(*split);
  } else {
    PrintSplit(*split);
    if (split->contains("shards")) {
      PrintShards((*split)["shards"]);
    }
  }
  return kExitOk;
}

// What the makers advise, by the names that requests have for it.
Json AdviceToJson(const model::SamplingDefaults& advice) {
  Json out = Json::object();
  const auto add = [&out](const char* name, const auto& value) {
    if (value.has_value()) {
      out[name] = *value;
    }
  };
  add("temperature", advice.temperature);
  add("top_k", advice.top_k);
  add("top_p", advice.top_p);
  add("min_p", advice.min_p);
  add("repetition_penalty", advice.repetition_penalty);
  return out;
}

int RunInspect(const Invocation& invocation, const std::string& path, bool list_tensors) {
  const absl::StatusOr<model::Model> opened = model::OpenModel(path);
  if (!opened.ok()) {
    return Fail(opened.status());
  }
  const absl::StatusOr<model::SamplingDefaults> advice = model::ReadSamplingDefaults(path);
  if (!advice.ok()) {
    return Fail(advice.status());
  }
  const model::ModelSummary summary = model::Inspect(*opened);
  if (invocation.json) {
    Json json = SummaryToJson(summary);
    json["sampling_defaults"] = AdviceToJson(*advice);
    PrintJson(json);
  } else {
    PrintSummary(summary, list_tensors);
    if (const Json advised = AdviceToJson(*advice); !advised.empty()) {
      std::printf("sampling     %s, where a request leaves it open\n", advised.dump().c_str());
    }
  }
  return kExitOk;
}

}  // namespace

void AddSplitCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, invocation, "split",
                                 "Where a model is cut, and what crosses the cuts", kSplitExamples);
  struct Flags {
    std::string path;
    uint32_t shards = 1;
  };
  const auto flags = std::make_shared<Flags>();
  command->add_option("MODEL", flags->path, "A GGUF file or a Hugging Face folder")->required();
  command->add_option("--shards", flags->shards, "What each of so many shards holds")
      ->transform(Whole(1, 8))
      ->type_name("N");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] {
      return RunSplit(invocation, flags->path, flags->shards);
    };
  });
}

void AddInspectCommand(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string path;
    bool tensors = false;
  };
  CLI::App* command = AddCommand(app, invocation, "inspect",
                                 "Shapes, types and sizes of a model's files", kInspectExamples);
  const auto flags = std::make_shared<Flags>();
  command->add_option("MODEL", flags->path, "A GGUF file or a Hugging Face folder")->required();
  command->add_flag("--tensors", flags->tensors, "Every tensor too");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] {
      return RunInspect(invocation, flags->path, flags->tensors);
    };
  });
}

}  // namespace lamina::cli
