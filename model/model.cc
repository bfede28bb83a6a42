// SPDX-License-Identifier: Apache-2.0
//
// OpenModel: recognises the kind of file, reads its settings, builds the graph, and checks that the
// file holds every tensor that the graph names, in the shape that it asks for.

#include "model/model.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/json_config_internal.h"
#include "model/gguf/gguf_file.h"
#include "model/mapped_file.h"
#include "model/safetensors/safetensors_source.h"

namespace lamina::model {
namespace {

// Larger ones are no configuration.
constexpr size_t kConfigBytesMax = 1u << 24;

absl::Status WithPath(const absl::Status& status, absl::string_view path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

std::string ShapeText(absl::Span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::vector<uint64_t> ExpectedShape(const Weight& weight) {
  if (weight.rows == 1 && weight.first_row == 0) {
    return {weight.cols};
  }
  return {uint64_t{weight.rows} + weight.first_row, weight.cols};
}

absl::Status CheckWeight(const Weight& weight, FileFormat format, const WeightSource& source) {
  const TensorInfo* info = source.Find(weight.name);
  const std::vector<uint64_t> expected = ExpectedShape(weight);
  if (info == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the model has no tensor \"", weight.name,
                                                   "\" of shape ", ShapeText(expected),
                                                   ", which its configuration asks for"));
  }
  if (info->shape != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", weight.name, "\" has shape ", ShapeText(info->shape),
                     ", and the configuration asks for ", ShapeText(expected)));
  }
  if (format == FileFormat::kHuggingFace && !IsReadableSafetensorsType(info->type)) {
    return absl::UnimplementedError(absl::StrCat("tensor \"", weight.name, "\" has type ",
                                                 info->type,
                                                 "; the known ones are F32, F16, BF16"));
  }
  return absl::OkStatus();
}

// Config is filled but for its sizes' check; the graph is built and checked against the weights.
absl::Status Complete(const Architecture& architecture, Model& model) {
  LAMINA_RETURN_IF_ERROR(CheckConfig(model.config));
  if (model.weights->tensors().size() < model.config.layers) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration has ", model.config.layers,
                                                   " layers, and the files hold ",
                                                   model.weights->tensors().size(), " tensors"));
  }
  LAMINA_ASSIGN_OR_RETURN(model.graph, architecture.build(model.config, *model.weights));
  for (const Weight& weight : model.graph.weights) {
    LAMINA_RETURN_IF_ERROR(CheckWeight(weight, model.config.format, *model.weights));
  }
  return absl::OkStatus();
}

// An id outside the vocabulary is left out: it cannot be sampled.
void AddEndToken(uint64_t token, ModelConfig& config) {
  if (token >= config.vocabulary) {
    return;
  }
  const auto id = static_cast<TokenId>(token);
  for (const TokenId known : config.end_tokens) {
    if (known == id) {
      return;
    }
  }
  config.end_tokens.push_back(id);
}

absl::StatusOr<Model> OpenGguf(const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  LAMINA_ASSIGN_OR_RETURN(const std::string name, file->GetString("general.architecture"));
  LAMINA_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitectureForGguf(name));
  if (file->tensors().empty()) {
    return absl::InvalidArgumentError("the file holds no tensors: it is a vocabulary, not a model");
  }
  Model model;
  model.config.format = FileFormat::kGguf;
  model.config.architecture = std::string(architecture->name);
  LAMINA_RETURN_IF_ERROR(architecture->read_gguf(*file, model.config));
  model.config.name = file->GetString("general.name").value_or(path);
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (file->Has(key)) {
      LAMINA_ASSIGN_OR_RETURN(const uint64_t token, file->GetUint(key));
      AddEndToken(token, model.config);
    }
  }
  model.weights = std::move(file);
  LAMINA_RETURN_IF_ERROR(Complete(*architecture, model));
  return model;
}

absl::StatusOr<JsonConfig> ReadJsonFile(const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > kConfigBytesMax) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", file.bytes().size(), " bytes: not a configuration"));
  }
  absl::StatusOr<JsonConfig> json = JsonConfig::Parse(file.bytes());
  return json.ok() ? std::move(json) : WithPath(json.status(), path);
}

absl::Status ReadEndTokens(const std::string& directory, const JsonConfig& json,
                           ModelConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(std::vector<uint32_t> tokens, json.GetUints("eos_token_id"));
  const absl::StatusOr<JsonConfig> generation = ReadJsonFile(directory + "/generation_config.json");
  if (generation.ok()) {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<uint32_t> more, generation->GetUints("eos_token_id"));
    tokens.insert(tokens.end(), more.begin(), more.end());
  } else if (!absl::IsNotFound(generation.status())) {
    return generation.status();
  }
  for (const uint32_t token : tokens) {
    AddEndToken(token, config);
  }
  return absl::OkStatus();
}

std::string LastPathPart(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path.substr(path.rfind('/') + 1);
}

absl::StatusOr<Model> OpenHuggingFace(const std::string& directory) {
  absl::StatusOr<JsonConfig> json = ReadJsonFile(directory + "/config.json");
  if (absl::IsNotFound(json.status())) {
    return absl::NotFoundError(absl::StrCat(
        directory, " has no config.json: give a GGUF file or a Hugging Face directory"));
  }
  LAMINA_RETURN_IF_ERROR(json.status());
  LAMINA_ASSIGN_OR_RETURN(const std::string type, json->GetString("model_type", ""));
  LAMINA_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitectureForJson(type));
  if (json->Has("quantization_config")) {
    return absl::UnimplementedError(
        "config.json: quantised Hugging Face weights are not supported; use the unquantised model "
        "or a GGUF file");
  }
  Model model;
  model.config.format = FileFormat::kHuggingFace;
  model.config.architecture = std::string(architecture->name);
  model.config.name = LastPathPart(directory);
  LAMINA_RETURN_IF_ERROR(architecture->read_json(*json, model.config));
  LAMINA_RETURN_IF_ERROR(ReadEndTokens(directory, *json, model.config));
  LAMINA_ASSIGN_OR_RETURN(model.weights, SafetensorsSource::OpenDirectory(directory));
  LAMINA_RETURN_IF_ERROR(Complete(*architecture, model));
  return model;
}

// Head h has its rows of q, k and v one after the other; they go to three stacks.
absl::Status ReadFusedQkv(const WeightSource& source, const Weight& weight, absl::Span<float> out) {
  const size_t parts = size_t{3} * weight.heads;
  const size_t chunk = out.size() / parts;  // Elements of one head of q, k or v.
  for (size_t head = 0; head < weight.heads; ++head) {
    for (size_t part = 0; part < 3; ++part) {
      const size_t from = (head * 3 + part) * chunk;
      const size_t to = (part * weight.heads + head) * chunk;
      LAMINA_RETURN_IF_ERROR(source.Read(weight.name, from, out.subspan(to, chunk)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadWhole(const WeightSource& source, const Weight& weight, absl::Span<float> out) {
  if (weight.order == WeightRows::kSplitFusedQkv) {
    return ReadFusedQkv(source, weight, out);
  }
  const uint64_t cols = weight.slice.has_value() ? weight.slice->whole_cols : weight.cols;
  return source.Read(weight.name, weight.first_row * cols, out);
}

// Of a matrix only the rows asked for; vectors, and rows that are stored in another order, as a
// whole.
absl::Status ReadSlice(const WeightSource& source, const Weight& weight, absl::Span<float> out) {
  const WeightSlice& slice = *weight.slice;
  const bool as_whole = weight.order != WeightRows::kAsStored || slice.whole_cols == 1;
  std::vector<float> rows(as_whole ? size_t{slice.whole_rows} * slice.whole_cols : 0);
  if (as_whole) {
    LAMINA_RETURN_IF_ERROR(ReadWhole(source, weight, absl::MakeSpan(rows)));
  }
  auto to = out.begin();
  for (const WeightRange& range : slice.rows) {
    const uint64_t first = as_whole ? uint64_t{range.first} * slice.whole_cols : 0;
    if (!as_whole) {
      rows.resize(size_t{range.count} * slice.whole_cols);
      LAMINA_RETURN_IF_ERROR(
          source.Read(weight.name, (uint64_t{weight.first_row} + range.first) * slice.whole_cols,
                      absl::MakeSpan(rows)));
    }
    for (size_t row = 0; row < range.count; ++row) {
      const float* from = rows.data() + first + row * slice.whole_cols + slice.cols.first;
      to = std::copy_n(from, slice.cols.count, to);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Model> OpenModel(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("model ", path));
  }
  absl::StatusOr<Model> model = S_ISDIR(info.st_mode) ? OpenHuggingFace(path) : OpenGguf(path);
  if (model.ok() || absl::StrContains(model.status().message(), path)) {
    return model;
  }
  return WithPath(model.status(), path);
}

absl::Status ReadWeight(const Model& model, WeightId id, absl::Span<float> out) {
  return ReadWeight(model.graph, *model.weights, id, out);
}

absl::Status ReadWeight(const Graph& graph, const WeightSource& source, WeightId id,
                        absl::Span<float> out) {
  if (id >= graph.weights.size()) {
    return absl::InvalidArgumentError(absl::StrCat("no weight ", id, " in the graph"));
  }
  const Weight& weight = graph.weights[id];
  if (out.size() != uint64_t{weight.rows} * weight.cols) {
    return absl::InvalidArgumentError(absl::StrCat("weight \"", weight.name, "\" has ", weight.rows,
                                                   " x ", weight.cols, " elements, not ",
                                                   out.size()));
  }
  return weight.slice.has_value() ? ReadSlice(source, weight, out) : ReadWhole(source, weight, out);
}

}  // namespace lamina::model
