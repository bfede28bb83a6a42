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

// How a weight lies in its tensor: a vector of n as n rows of one.
struct Layout {
  explicit Layout(const Weight& weight)
      : vector(weight.slice.has_value()
                   ? weight.slice->whole_cols == 1
                   : weight.rows == 1 && (weight.first_row == 0 || weight.row_step > 1)),
        rows(weight.slice.has_value() ? weight.slice->whole_rows
             : vector                 ? weight.cols
                                      : weight.rows),
        cols(weight.slice.has_value() ? weight.slice->whole_cols
             : vector                 ? 1
                                      : weight.cols),
        stored_rows(weight.row_step > 1 ? rows * weight.row_step : rows + weight.first_row),
        begin(weight.stack.index * stored_rows * cols) {}

  bool vector;
  uint64_t rows;  // Shape of the weight.
  uint64_t cols;
  uint64_t stored_rows;  // Rows that the tensor has of it.
  uint64_t begin;        // First element of it in the tensor.
};

std::vector<uint64_t> ExpectedShape(const Weight& weight) {
  const Layout layout(weight);
  std::vector<uint64_t> shape;
  if (weight.stack.count != 0) {
    shape.push_back(weight.stack.count);
  }
  if (weight.order == WeightRows::kTransposed) {
    shape.push_back(layout.cols);
  }
  shape.push_back(layout.stored_rows);
  if (weight.order != WeightRows::kTransposed && !layout.vector) {
    shape.push_back(layout.cols);
  }
  return shape;
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
                                                 "; the known ones are F32, F16, BF16, and MXFP4 "
                                                 "in pairs of _blocks and _scales"));
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

// The text part of a model that also takes images, with the settings that all of it shares.
absl::StatusOr<JsonConfig> TextPart(const Architecture& architecture, const std::string& type,
                                    const JsonConfig& json) {
  if (std::find(architecture.types_with_text.begin(), architecture.types_with_text.end(), type) ==
      architecture.types_with_text.end()) {
    return json;
  }
  LAMINA_ASSIGN_OR_RETURN(JsonConfig text, json.Section("text_config"));
  LAMINA_ASSIGN_OR_RETURN(const std::string text_type, text.GetString("model_type", ""));
  const auto& known = architecture.hugging_face_types;
  if (std::find(known.begin(), known.end(), text_type) == known.end()) {
    return absl::UnimplementedError(
        absl::StrCat("config.json: the text part of \"", type, "\" is of model_type \"", text_type,
                     "\"; the known ones are ", absl::StrJoin(known, ", ")));
  }
  return text;
}

absl::StatusOr<Model> OpenGguf(const std::string& path, const OpenOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  LAMINA_ASSIGN_OR_RETURN(const std::string name, file->GetString("general.architecture"));
  LAMINA_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitectureForGguf(name));
  if (file->tensors().empty()) {
    return absl::InvalidArgumentError("the file holds no tensors: it is a vocabulary, not a model");
  }
  Model model;
  model.config.format = FileFormat::kGguf;
  model.config.sequence_tokens_max = options.sequence_tokens_max;
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

// Whether the weights are quantised in a way that is read: MXFP4, as gpt-oss has it.
absl::Status CheckQuantisation(const JsonConfig& json) {
  LAMINA_ASSIGN_OR_RETURN(const JsonConfig section, json.Section("quantization_config"));
  LAMINA_ASSIGN_OR_RETURN(const std::string method, section.GetString("quant_method", "unnamed"));
  if (!json.Has("quantization_config") || method == "mxfp4") {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("config.json: quantised Hugging Face weights (quant_method \"", method,
                   "\": FP8, AWQ, GPTQ and others) are not supported; use the unquantised model or "
                   "a GGUF file"));
}

absl::StatusOr<Model> OpenHuggingFace(const std::string& directory, const OpenOptions& options) {
  absl::StatusOr<JsonConfig> json = ReadJsonFile(directory + "/config.json");
  if (absl::IsNotFound(json.status())) {
    return absl::NotFoundError(absl::StrCat(
        directory, " has no config.json: give a GGUF file or a Hugging Face directory"));
  }
  LAMINA_RETURN_IF_ERROR(json.status());
  LAMINA_ASSIGN_OR_RETURN(const std::string type, json->GetString("model_type", ""));
  LAMINA_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitectureForJson(type));
  LAMINA_RETURN_IF_ERROR(CheckQuantisation(*json));
  LAMINA_ASSIGN_OR_RETURN(const JsonConfig text, TextPart(*architecture, type, *json));
  Model model;
  model.config.sequence_tokens_max = options.sequence_tokens_max;
  model.config.format = FileFormat::kHuggingFace;
  model.config.architecture = std::string(architecture->name);
  model.config.name = LastPathPart(directory);
  LAMINA_RETURN_IF_ERROR(architecture->read_json(text, model.config));
  LAMINA_RETURN_IF_ERROR(ReadEndTokens(directory, *json, model.config));
  if (json->Has("text_config")) {
    LAMINA_RETURN_IF_ERROR(ReadEndTokens(directory, text, model.config));
  }
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

// Rows that do not follow one another in the tensor: those of a transposed one, or every
// row_step-th.
absl::Status ReadScattered(const WeightSource& source, const Weight& weight, const Layout& layout,
                           absl::Span<float> out) {
  std::vector<float> stored(layout.stored_rows * layout.cols);
  LAMINA_RETURN_IF_ERROR(source.Read(weight.name, layout.begin, absl::MakeSpan(stored)));
  const bool transposed = weight.order == WeightRows::kTransposed;
  for (uint64_t row = 0; row < layout.rows; ++row) {
    const uint64_t from = weight.first_row + row * weight.row_step;
    for (uint64_t col = 0; col < layout.cols; ++col) {
      out[row * layout.cols + col] =
          transposed ? stored[col * layout.stored_rows + from] : stored[from * layout.cols + col];
    }
  }
  return absl::OkStatus();
}

bool IsScattered(const Weight& weight) {
  return weight.order == WeightRows::kTransposed || weight.row_step > 1;
}

absl::Status ReadWhole(const WeightSource& source, const Weight& weight, absl::Span<float> out) {
  if (weight.order == WeightRows::kSplitFusedQkv) {
    return ReadFusedQkv(source, weight, out);
  }
  const Layout layout(weight);
  if (IsScattered(weight)) {
    return ReadScattered(source, weight, layout, out);
  }
  return source.Read(weight.name, layout.begin + weight.first_row * layout.cols, out);
}

// Reads only the rows asked for of a matrix; vectors, and rows that are stored in another order, as
// a whole.
absl::Status ReadSlice(const WeightSource& source, const Weight& weight, absl::Span<float> out) {
  const WeightSlice& slice = *weight.slice;
  const bool as_whole =
      weight.order != WeightRows::kAsStored || slice.whole_cols == 1 || IsScattered(weight);
  std::vector<float> rows(as_whole ? size_t{slice.whole_rows} * slice.whole_cols : 0);
  if (as_whole) {
    LAMINA_RETURN_IF_ERROR(ReadWhole(source, weight, absl::MakeSpan(rows)));
  }
  auto to = out.begin();
  for (const WeightRange& range : slice.rows) {
    const uint64_t first = as_whole ? uint64_t{range.first} * slice.whole_cols : 0;
    if (!as_whole) {
      rows.resize(size_t{range.count} * slice.whole_cols);
      LAMINA_RETURN_IF_ERROR(source.Read(
          weight.name,
          Layout(weight).begin + (uint64_t{weight.first_row} + range.first) * slice.whole_cols,
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

absl::StatusOr<Model> OpenModel(const std::string& path, const OpenOptions& options) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("model ", path));
  }
  absl::StatusOr<Model> model =
      S_ISDIR(info.st_mode) ? OpenHuggingFace(path, options) : OpenGguf(path, options);
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
  LAMINA_RETURN_IF_ERROR(weight.slice.has_value() ? ReadSlice(source, weight, out)
                                                  : ReadWhole(source, weight, out));
  if (weight.offset != 0.0f) {
    for (float& x : out) {
      x += weight.offset;
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
