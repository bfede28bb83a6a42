// SPDX-License-Identifier: Apache-2.0
//
// OpenModel, ReadWeight and Inspect: what they give, and the error for each thing that can be wrong
// with a model. That graphs compute the right logits is in tests/fidelity.

#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "model/inspect.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/random_model.h"
#include "tests/support/safetensors_writer.h"

namespace lamina::model {
namespace {

using test_support::GgufWriter;
using test_support::RandomModelSpec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/model_test_",
                              ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
  }

  void WriteModel(const RandomModelSpec& spec) const {
    ASSERT_TRUE(WriteRandomModel(spec, directory_).ok());
  }

  // Replaces text in config.json; it must be there.
  void Edit(const std::string& from, const std::string& to) const {
    std::ifstream file(Path("config.json"));
    std::stringstream content;
    content << file.rdbuf();
    std::string text = content.str();
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from << " in " << text;
    Write("config.json", text.replace(at, from.size(), to));
  }

  absl::Status Open() const { return OpenModel(directory_).status(); }

  // Opens the plain model with one edit of config.json.
  absl::Status OpenEdited(const std::string& from, const std::string& to,
                          const RandomModelSpec& spec = {}) const {
    WriteModel(spec);
    Edit(from, to);
    return Open();
  }

  std::string directory_;
};

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST_F(ModelTest, ConfigOfAHuggingFaceDirectory) {
  WriteModel({.query_heads = 8, .kv_heads = 2, .head_dim = 32, .rope_theta = 500000.0f});
  Write("generation_config.json", R"({"eos_token_id":[257,12]})");
  const absl::StatusOr<Model> model = OpenModel(directory_);
  ASSERT_TRUE(model.ok()) << model.status();

  EXPECT_EQ(model->config.format, FileFormat::kHuggingFace);
  EXPECT_EQ(model->config.architecture, "llama");
  EXPECT_EQ(model->config.layers, 2u);
  EXPECT_EQ(model->config.head_dim, 32u);
  EXPECT_EQ(model->config.rope.base, 500000.0f);
  EXPECT_THAT(model->config.end_tokens, ElementsAre(257, 12));
  EXPECT_EQ(model->graph.attention_count(), 2u);
}

TEST_F(ModelTest, NothingThereIsNotFoundAndSaysWhatIsMissing) {
  ExpectError(OpenModel(Path("none.gguf")).status(), absl::StatusCode::kNotFound, "none.gguf");
  ExpectError(Open(), absl::StatusCode::kNotFound, "config.json");
  WriteModel({});
  std::filesystem::remove(Path("model.safetensors"));
  ExpectError(Open(), absl::StatusCode::kNotFound, "model.safetensors");
}

TEST_F(ModelTest, AConfigurationThatNestsWithoutEndIsRefused) {
  WriteModel({});
  const std::string lists = std::string(200'000, '[') + std::string(200'000, ']');
  Write("config.json", absl::StrCat(R"({"model_type":"llama","rope_scaling":)", lists, "}"));

  ExpectError(Open(), absl::StatusCode::kInvalidArgument, "at most 64");
}

TEST_F(ModelTest, UnknownArchitecturesListTheKnownOnes) {
  const absl::Status status = OpenEdited("\"llama\"", "\"unheard_of\"");
  ExpectError(status, absl::StatusCode::kUnimplemented, "unheard_of");
  ExpectError(status, absl::StatusCode::kUnimplemented, "llama, mistral, mistral3, mixtral");
  ExpectError(OpenEdited("\"llama\"", "\"mamba\""), absl::StatusCode::kUnimplemented,
              "recurrent state");
  GgufWriter writer;
  writer.AddString("general.architecture", "deepseek2");
  Write("model.gguf", writer.Finish());
  ExpectError(OpenModel(Path("model.gguf")).status(), absl::StatusCode::kUnimplemented,
              "latent attention");
}

TEST_F(ModelTest, DamagedConfigIsDataLoss) {
  WriteModel({});
  Write("config.json", "{\"model_type\":\"lla");
  ExpectError(Open(), absl::StatusCode::kDataLoss, "config.json");
}

TEST_F(ModelTest, ContradictingSettingsAreNamed) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  ExpectError(OpenEdited("\"num_key_value_heads\":4", "\"num_key_value_heads\":3"), invalid,
              "not a multiple of its 3 KV heads");
  ExpectError(OpenEdited("\"num_hidden_layers\":2", "\"num_hidden_layers\":0"), invalid, "layers");
  ExpectError(OpenEdited("\"num_hidden_layers\":2", "\"num_hidden_layers\":100000"), invalid,
              "layers");
  ExpectError(OpenEdited("\"num_hidden_layers\":2", "\"num_hidden_layers\":900"), invalid,
              "900 layers");
  ExpectError(OpenEdited("\"hidden_size\":64", "\"hidden_size\":-64"), invalid, "hidden_size");
  ExpectError(OpenEdited("\"hidden_size\":64", "\"hidden_size\":63"), invalid, "hidden_size 63");
  ExpectError(OpenEdited("\"vocab_size\":320,", ""), invalid, "vocab_size");
  ExpectError(OpenEdited("\"rope_theta\":10000", "\"rope_theta\":0"), invalid, "rope base");
  ExpectError(OpenEdited("\"rms_norm_eps\":1e-06", "\"rms_norm_eps\":-1"), invalid, "epsilon");
  ExpectError(OpenEdited("\"tie_word_embeddings\":false", "\"tie_word_embeddings\":3"), invalid,
              "tie_word_embeddings");
}

TEST_F(ModelTest, WhatWeDoNotSupportIsUnimplementedAndNamed) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  ExpectError(OpenEdited("\"silu\"", "\"softplus\""), unimplemented, "softplus");
  ExpectError(OpenEdited("\"rope_type\":\"default\"", "\"rope_type\":\"dynamic\""), unimplemented,
              "dynamic");
  ExpectError(OpenEdited("\"rope_type\":\"default\"", "\"full_attention\":{}"), unimplemented,
              "each layer type");
  for (const char* method : {"fp8", "awq", "gptq", "bitsandbytes"}) {
    ExpectError(
        OpenEdited("\"vocab_size\"", absl::StrCat("\"quantization_config\":{\"quant_method\":\"",
                                                  method, "\"},\"vocab_size\"")),
        unimplemented, method);
  }
  ExpectError(OpenEdited("\"vocab_size\"", "\"quantization_config\":{},\"vocab_size\""),
              unimplemented, "quantised");
  RandomModelSpec moe = {.model_type = "qwen3_moe", .experts = 4, .experts_per_token = 2};
  moe.extra = "\"mlp_only_layers\":[0]";
  ExpectError(OpenEdited("\"vocab_size\"", "\"vocab_size\"", moe), unimplemented,
              "mlp_only_layers");
  RandomModelSpec oss = {.model_type = "gpt_oss", .experts = 4, .experts_per_token = 2};
  oss.attention_bias = true;
  oss.extra = "\"swiglu_limit\":5.0";
  ExpectError(OpenEdited("\"vocab_size\"", "\"vocab_size\"", oss), unimplemented, "swiglu_limit");
  ExpectError(OpenEdited("\"num_attention_heads\":4", "\"head_dim\":24,\"num_attention_heads\":4"),
              unimplemented, "head size 24");
  const RandomModelSpec opt = {.model_type = "opt", .activation = "relu"};
  ExpectError(OpenEdited("\"do_layer_norm_before\":true", "\"do_layer_norm_before\":false", opt),
              unimplemented, "do_layer_norm_before");
  ExpectError(OpenEdited("\"word_embed_proj_dim\":64", "\"word_embed_proj_dim\":32", opt),
              unimplemented, "word_embed_proj_dim");
  ExpectError(OpenEdited("\"ffn_dim\"", "\"_remove_final_layer_norm\":true,\"ffn_dim\"", opt),
              unimplemented, "_remove_final_layer_norm");
  ExpectError(OpenEdited("\"ffn_dim\"", "\"layer_norm_elementwise_affine\":false,\"ffn_dim\"", opt),
              unimplemented, "layer_norm_elementwise_affine");
  const RandomModelSpec qwen = {.model_type = "qwen2"};
  ExpectError(
      OpenEdited("\"vocab_size\"", "\"layer_types\":[\"sliding_attention\"],\"vocab_size\"", qwen),
      unimplemented, "layer_types[0]");
}

TEST_F(ModelTest, MoreExpertsOfATokenThanThereAreAreRefused) {
  RandomModelSpec moe = {.model_type = "mixtral", .experts = 4, .experts_per_token = 2};
  ExpectError(OpenEdited("\"num_experts_per_tok\":2", "\"num_experts_per_tok\":5", moe),
              absl::StatusCode::kInvalidArgument, "4 experts");
}

TEST_F(ModelTest, LongropeWithTooFewFactorsIsRefused) {
  const RandomModelSpec phi = {.model_type = "phi3"};
  const char* const kShort =
      "\"rope_type\":\"longrope\",\"short_factor\":[1.0],\"long_factor\":[1.0],"
      "\"original_max_position_embeddings\":64";
  ExpectError(OpenEdited("\"rope_type\":\"default\"", kShort, phi),
              absl::StatusCode::kInvalidArgument, "longrope has 1");
}

// As transformers 4 and 5 save models of text and images.
TEST_F(ModelTest, TheTextPartOfAModelWithImagesIsOpened) {
  const RandomModelSpec spec = {.model_type = "gemma3_text", .tied = true};
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    test_support::SafetensorsWriter writer;
    for (const test_support::RandomTensor& tensor : RandomTensors(spec)) {
      writer.AddTensorF32(absl::StrCat(prefix, tensor.name.substr(6)), tensor.shape,
                          RandomValues(spec, tensor));
    }
    writer.AddTensorF32("vision_tower.patches", {2}, {1.0f, 2.0f});
    Write("model.safetensors", writer.Finish());
    const std::string text = RandomConfig(spec);
    Write("config.json", absl::StrCat(R"({"model_type":"gemma3","eos_token_id":[3,257],)",
                                      R"("vision_config":{},"text_config":)", text, "}"));
    const absl::StatusOr<Model> model = OpenModel(directory_);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->config.layers, spec.layers);
    EXPECT_EQ(model->config.architecture, "gemma3");
    EXPECT_EQ(model->config.end_tokens.front(), 3);
  }
  Write("config.json", R"({"model_type":"gemma3","text_config":{"model_type":"clip"}})");
  ExpectError(Open(), absl::StatusCode::kUnimplemented, "clip");
}

// With the settings of google/gemma-3-4b-it but fewer layers, which leave out what its class has as
// defaults.
TEST_F(ModelTest, SettingsThatGemma3LeavesOutAreThoseOfItsClass) {
  WriteModel({});
  Write("config.json", R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text",
      "hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":20,"sliding_window":1024,
      "rope_scaling":{"factor":8.0,"rope_type":"linear"}}})");
  // The files are another model's: the first tensor that is asked for has the shape that follows.
  ExpectError(Open(), absl::StatusCode::kInvalidArgument, "[262208, 2560]");
}

TEST_F(ModelTest, InspectCountsWhatWindowsHide) {
  RandomModelSpec spec = {.model_type = "mistral", .kv_heads = 2, .window = 100};
  WriteModel(spec);
  const absl::StatusOr<Model> model = OpenModel(directory_);
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelSummary summary = Inspect(*model);
  EXPECT_EQ(summary.kv_bytes_kept, 356 * summary.kv_bytes_per_token);  // And a block.
  EXPECT_EQ(summary.kv_bytes_read, 100 * summary.kv_bytes_per_token);
}

TEST_F(ModelTest, ATensorOfAnotherShapeIsNamedWithBothShapes) {
  const absl::Status status = OpenEdited("\"vocab_size\":320", "\"vocab_size\":321");
  ExpectError(status, absl::StatusCode::kInvalidArgument, "model.embed_tokens.weight");
  ExpectError(status, absl::StatusCode::kInvalidArgument, "[320, 64]");
  ExpectError(status, absl::StatusCode::kInvalidArgument, "[321, 64]");
}

TEST_F(ModelTest, AMissingTensorIsNamed) {
  ExpectError(OpenEdited("\"attention_bias\":false", "\"attention_bias\":true"),
              absl::StatusCode::kInvalidArgument, "model.layers.0.self_attn.q_proj.bias");
}

TEST_F(ModelTest, ATensorTypeThatCannotBeReadIsUnimplemented) {
  const RandomModelSpec spec;
  WriteModel(spec);
  test_support::SafetensorsWriter writer;
  for (const test_support::RandomTensor& tensor : RandomTensors(spec)) {
    if (tensor.name == "model.norm.weight") {
      writer.AddTensor(tensor.name, tensor.shape, "I8", std::string(spec.width, '\1'));
    } else {
      writer.AddTensorF32(tensor.name, tensor.shape, RandomValues(tensor, 1));
    }
  }
  Write("model.safetensors", writer.Finish());
  ExpectError(Open(), absl::StatusCode::kUnimplemented, "model.norm.weight");
}

TEST_F(ModelTest, AVocabularyIsNotAModel) {
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  Write("model.gguf", writer.Finish());
  ExpectError(OpenModel(Path("model.gguf")).status(), absl::StatusCode::kInvalidArgument,
              "it is a vocabulary");
}

TEST_F(ModelTest, GgufMetadataThatIsMissingIsNamed) {
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddUint("llama.block_count", 2);
  writer.AddTensorF32("token_embd.weight", {1}, {0.0f});
  Write("model.gguf", writer.Finish());
  ExpectError(OpenModel(Path("model.gguf")).status(), absl::StatusCode::kNotFound,
              "llama.embedding_length");
}

// Embedding, one layer and its norms, all zero, with more metadata from the caller.
std::string GgufWithRope(const std::function<void(GgufWriter&)>& add,
                         const std::string& architecture = "llama") {
  GgufWriter writer;
  writer.AddString("general.architecture", architecture);
  writer.AddUint(architecture + ".block_count", 1);
  writer.AddUint(architecture + ".context_length", 2048);
  writer.AddUint(architecture + ".embedding_length", 32);
  writer.AddUint(architecture + ".feed_forward_length", 32);
  writer.AddUint(architecture + ".attention.head_count", 2);
  writer.AddFloat(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  writer.AddUint("tokenizer.ggml.eos_token_id", 3);
  add(writer);
  const std::vector<float> square(32 * 32, 0.0f);
  for (const char* name :
       {"token_embd", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.attn_output",
        "blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"}) {
    writer.AddTensorF32(absl::StrCat(name, ".weight"), {32, 32}, square);
  }
  for (const char* name : {"blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"}) {
    writer.AddTensorF32(absl::StrCat(name, ".weight"), {32}, std::vector<float>(32, 1.0f));
  }
  return writer.Finish();
}

const RopeOp& FirstRope(const Graph& graph) {
  for (const Op& op : graph.ops) {
    if (const auto* rope = std::get_if<RopeOp>(&op.body)) {
      return *rope;
    }
  }
  ADD_FAILURE() << "no rope";
  static const RopeOp kEmpty;
  return kEmpty;
}

TEST_F(ModelTest, GgufRopeFactorsDivideTheFrequencies) {
  Write("plain.gguf", GgufWithRope([](GgufWriter&) {}));
  Write("scaled.gguf", GgufWithRope([](GgufWriter& writer) {
          writer.AddTensorF32("rope_freqs.weight", {8}, {1, 1, 1, 1, 2, 2, 8, 8});
        }));
  const absl::StatusOr<Model> plain = OpenModel(Path("plain.gguf"));
  const absl::StatusOr<Model> scaled = OpenModel(Path("scaled.gguf"));
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_TRUE(scaled.ok()) << scaled.status();

  const RopeOp& a = FirstRope(plain->graph);
  const RopeOp& b = FirstRope(scaled->graph);
  EXPECT_EQ(a.layout, RopeLayout::kInterleaved);
  ASSERT_EQ(b.frequencies.size(), 8u);
  EXPECT_EQ(b.frequencies[0], a.frequencies[0]);
  EXPECT_EQ(b.frequencies[4], a.frequencies[4] / 2.0f);
  EXPECT_EQ(b.frequencies[7], a.frequencies[7] / 8.0f);
  EXPECT_TRUE(plain->config.tied_embeddings);
  EXPECT_EQ(plain->config.vocabulary, 32u);
  EXPECT_THAT(plain->config.end_tokens, ElementsAre(3));

  Write("short.gguf", GgufWithRope([](GgufWriter& writer) {
          writer.AddTensorF32("rope_freqs.weight", {4}, {1, 1, 1, 1});
        }));
  ExpectError(OpenModel(Path("short.gguf")).status(), absl::StatusCode::kInvalidArgument,
              "rope_freqs.weight");
}

// Its files bear OLMo 2's name, and their layers with windows would be read as all layers.
TEST_F(ModelTest, Olmo3InAGgufFileIsRefused) {
  Write("model.gguf",
        GgufWithRope(
            [](GgufWriter& writer) { writer.AddUint("olmo2.attention.sliding_window", 4096); },
            "olmo2"));
  ExpectError(OpenModel(Path("model.gguf")).status(), absl::StatusCode::kUnimplemented, "OLMo 3");
}

// As transformers saves SmolLM3, whose default that is.
TEST_F(ModelTest, SmolLm3HasTiedEmbeddingsWhereItsFilesSayNothing) {
  WriteModel({.model_type = "smollm3", .tied = true});
  Edit(R"(,"tie_word_embeddings":true)", "");
  const absl::StatusOr<Model> model = OpenModel(directory_);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->config.tied_embeddings);
}

TEST_F(ModelTest, GgufYarnEqualsTheSameYarnInConfigJson) {
  Write("yarn.gguf", GgufWithRope([](GgufWriter& writer) {
          writer.AddString("llama.rope.scaling.type", "yarn");
          writer.AddFloat("llama.rope.scaling.factor", 4.0f);
          writer.AddUint("llama.rope.scaling.original_context_length", 512);
          writer.AddFloat("llama.rope.scaling.yarn_beta_fast", 16.0f);
        }));
  WriteModel({.rope_scaling = R"("rope_type":"yarn","factor":4.0,"beta_fast":16,)"
                              R"("original_max_position_embeddings":512)"});
  const absl::StatusOr<Model> gguf = OpenModel(Path("yarn.gguf"));
  const absl::StatusOr<Model> json = OpenModel(directory_);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  ASSERT_TRUE(json.ok()) << json.status();

  EXPECT_EQ(FirstRope(gguf->graph).frequencies, FirstRope(json->graph).frequencies);
  EXPECT_EQ(FirstRope(gguf->graph).magnitude, FirstRope(json->graph).magnitude);
  EXPECT_GT(FirstRope(gguf->graph).magnitude, 1.1f);
}

// People add yarn to a config.json, whose length is of before.
TEST_F(ModelTest, YarnStretchesTheLengthThatAFileHasFromBefore) {
  const auto positions = [this](const std::string& yarn) {
    WriteModel({.positions_max = 512, .rope_scaling = R"("rope_type":"yarn",)" + yarn});
    const absl::StatusOr<Model> model = OpenModel(directory_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->config.positions_max : 0;
  };
  EXPECT_EQ(positions(R"("factor":4.0,"original_max_position_embeddings":512)"), 2048u);
  EXPECT_EQ(positions(R"("factor":4.0,"original_max_position_embeddings":400)"), 1600u);
  EXPECT_EQ(positions(R"("factor":4.0)"), 2048u);
  EXPECT_EQ(positions(R"("factor":4.0,"original_max_position_embeddings":128)"), 512u);
  EXPECT_EQ(positions(R"("original_max_position_embeddings":128)"), 512u);

  const auto of_gguf = [this](bool with_original) {
    Write("yarn.gguf", GgufWithRope([with_original](GgufWriter& writer) {
            writer.AddString("llama.rope.scaling.type", "yarn");
            writer.AddFloat("llama.rope.scaling.factor", 4.0f);
            if (with_original) {
              writer.AddUint("llama.rope.scaling.original_context_length", 2048);
            }
          }));
    const absl::StatusOr<Model> model = OpenModel(Path("yarn.gguf"));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->config.positions_max : 0;
  };
  EXPECT_EQ(of_gguf(true), 8192u);
  EXPECT_EQ(of_gguf(false), 2048u) << "nobody knows what was stretched";

  WriteModel({.rope_scaling = R"("rope_type":"yarn","factor":1e9)"});
  ExpectError(OpenModel(directory_).status(), absl::StatusCode::kInvalidArgument, "positions");
}

TEST_F(ModelTest, GgufScaleLinearDividesEveryFrequency) {
  Write("old.gguf",
        GgufWithRope([](GgufWriter& writer) { writer.AddFloat("llama.rope.scale_linear", 4.0f); }));
  const absl::StatusOr<Model> model = OpenModel(Path("old.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(FirstRope(model->graph).frequencies[0], 0.25f);
}

TEST_F(ModelTest, MistralHasItsWindowAlsoWhenTheFileIsSilent) {
  const RandomModelSpec spec = {.model_type = "mistral", .window = 100};
  WriteModel(spec);
  EXPECT_EQ(OpenModel(directory_)->config.window, 100u);
  Edit(",\"sliding_window\":100", "");
  EXPECT_EQ(OpenModel(directory_)->config.window, 4096u);
}

TEST_F(ModelTest, ReadWeightSplitsFusedRows) {
  const RandomModelSpec spec = {
      .model_type = "gpt_neox", .attention_bias = true, .activation = "gelu"};
  WriteModel(spec);
  const absl::StatusOr<Model> model = OpenModel(directory_);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string name = "gpt_neox.layers.1.attention.query_key_value";
  for (WeightId id = 0; id < model->graph.weights.size(); ++id) {
    const Weight& weight = model->graph.weights[id];
    if (weight.name != name + ".weight" && weight.name != name + ".bias") {
      continue;
    }
    const size_t cols = weight.rows == 1 ? 1 : weight.cols;
    std::vector<float> stored(size_t{weight.rows} * weight.cols);
    std::vector<float> split(stored.size());
    ASSERT_TRUE(model->weights->Read(weight.name, 0, absl::MakeSpan(stored)).ok());
    ASSERT_TRUE(ReadWeight(*model, id, absl::MakeSpan(split)).ok());
    // Row 5 of head 2 of k: stored [head][3][16], wanted [3][head][16].
    const size_t from = ((2 * 3 + 1) * 16 + 5) * cols;
    const size_t to = ((1 * 4 + 2) * 16 + 5) * cols;
    EXPECT_EQ(split[to], stored[from]) << weight.name;
    EXPECT_EQ(split[to + cols - 1], stored[from + cols - 1]) << weight.name;
  }
}

TEST_F(ModelTest, ReadWeightRefusesAWrongIdOrSize) {
  WriteModel({});
  const absl::StatusOr<Model> model = OpenModel(directory_);
  ASSERT_TRUE(model.ok());
  std::vector<float> out(7);
  EXPECT_EQ(ReadWeight(*model, 0, absl::MakeSpan(out)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadWeight(*model, 100000, absl::MakeSpan(out)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ModelTest, ReadWeightLeavesOutTheRowsInFront) {
  const RandomModelSpec spec = {.model_type = "opt", .activation = "relu"};
  WriteModel(spec);
  const absl::StatusOr<Model> model = OpenModel(directory_);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<float> table(512 * 64);
  ASSERT_EQ(model->graph.weights[1].name, "model.decoder.embed_positions.weight");
  ASSERT_TRUE(ReadWeight(*model, 1, absl::MakeSpan(table)).ok());
  std::vector<float> third(64);
  ASSERT_TRUE(model->weights->Read(model->graph.weights[1].name, 128, absl::MakeSpan(third)).ok());
  EXPECT_EQ(std::vector<float>(table.begin(), table.begin() + 64), third);
}

// Whether `to` needs `from`, directly or not.
bool DependsOn(const Graph& graph, ValueId to, ValueId from) {
  if (to == from) {
    return true;
  }
  for (const ValueId input : graph.ops[graph.values[to].producer].inputs) {
    if (DependsOn(graph, input, from)) {
      return true;
    }
  }
  return false;
}

ValueId FindValue(const Graph& graph, const std::string& name) {
  for (ValueId id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].name == name) {
      return id;
    }
  }
  ADD_FAILURE() << "no value " << name;
  return 0;
}

TEST_F(ModelTest, ParallelResidualKeepsTheMlpApartFromTheAttention) {
  for (const bool parallel : {true, false}) {
    WriteModel({.model_type = "gpt_neox", .activation = "gelu", .parallel_residual = parallel});
    const absl::StatusOr<Model> model = OpenModel(directory_);
    ASSERT_TRUE(model.ok()) << model.status();
    const ValueId attention = FindValue(model->graph, "layers.0.attention");
    const ValueId mlp = FindValue(model->graph, "layers.0.down");
    EXPECT_EQ(DependsOn(model->graph, mlp, attention), !parallel);
  }
}

TEST_F(ModelTest, InspectAddsUp) {
  const RandomModelSpec spec = {.query_heads = 4, .kv_heads = 2, .head_dim = 32, .tied = true};
  ASSERT_TRUE(WriteRandomGguf(spec, Path("model.gguf"), "Q8_0").ok());
  const absl::StatusOr<Model> model = OpenModel(Path("model.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelSummary summary = Inspect(*model);

  uint64_t elements = 0;
  for (const test_support::RandomTensor& tensor : RandomTensors(spec)) {
    elements += tensor.shape[0] * (tensor.shape.size() == 2 ? tensor.shape[1] : 1);
  }
  EXPECT_EQ(summary.parameters, elements);
  EXPECT_EQ(summary.bf16_bytes, 2 * elements);
  EXPECT_EQ(summary.kv_bytes_per_token, 2u * 2 * 2 * 32 * 2)
      << "k and v, layers, heads, size, bf16";
  ASSERT_EQ(summary.types.size(), 2u);
  EXPECT_EQ(summary.types[0].type, "Q8_0");
  EXPECT_EQ(summary.types[1].type, "F32");
  EXPECT_EQ(summary.types[1].stored_bytes, 5u * 64 * 4) << "two norms a layer and the last one";
  EXPECT_EQ(summary.stored_bytes, summary.types[0].stored_bytes + summary.types[1].stored_bytes);
}

}  // namespace
}  // namespace lamina::model
