// SPDX-License-Identifier: Apache-2.0
#include "coordinator/streaming_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/foreign_text.h"
#include "common/json_bounds.h"
#include "common/status_macros.h"

namespace lamina::coordinator {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kBytesMax = 1 << 20;
constexpr uint32_t kFormat = 1;
constexpr size_t kNameShown = 64;

class Reader {
 public:
  Reader(absl::string_view origin, const model::ModelConfig& model,
         absl::Span<const AttentionDescriptor> layers)
      : origin_(origin), model_(model), layers_(layers) {}

  absl::StatusOr<StreamingHeads> Read(const Json& json) const {
    LAMINA_RETURN_IF_ERROR(CheckKeys(json, "", {"format", "model", "streaming"}));
    LAMINA_ASSIGN_OR_RETURN(const uint32_t format, Number(json, "", "format"));
    if (format != kFormat) {
      return Error("format: ", format, " is another format; this version reads ", kFormat);
    }
    LAMINA_RETURN_IF_ERROR(CheckModel(json));
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      if (layers_[layer].window != 0) {
        return Error("the model's layer ", layer, " attends to a window of ", layers_[layer].window,
                     " tokens in all heads; this version serves heads that stream in models "
                     "without windows");
      }
    }
    const auto list = json.find("streaming");
    if (list == json.end() || !list->is_array()) {
      return Error(
          "streaming: missing, or no list; it is one of objects like {\"layer\": 0, "
          "\"heads\": [1]}");
    }
    StreamingHeads streaming;
    streaming.layers.resize(layers_.size());
    for (size_t i = 0; i < list->size(); ++i) {
      LAMINA_RETURN_IF_ERROR(ReadLayer((*list)[i], absl::StrCat("streaming.", i), streaming));
    }
    return streaming.empty() ? StreamingHeads() : streaming;
  }

 private:
  template <typename... Words>
  absl::Status Error(const Words&... words) const {
    return absl::InvalidArgumentError(
        absl::StrCat("fetch.streaming_heads: ", origin_, ": ", words...));
  }

  absl::Status CheckKeys(const Json& json, absl::string_view path,
                         const std::vector<std::string>& known) const {
    if (!json.is_object()) {
      return Error(path.empty() ? "the file" : path, " is no JSON object with the keys ",
                   absl::StrJoin(known, ", "));
    }
    for (const auto& [key, value] : json.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        return Error("unknown key '", ForeignText(key, kNameShown), "'",
                     path.empty() ? "" : absl::StrCat(" in ", path),
                     "; known here: ", absl::StrJoin(known, ", "));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Number(const Json& json, absl::string_view path,
                                  const std::string& key) const {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned() ||
        found->get<uint64_t>() > UINT32_MAX) {
      return Error(path, path.empty() ? "" : ".", key, ": missing, or no number from 0 on");
    }
    return found->get<uint32_t>();
  }

  // The shapes of two models may be the same: then their names tell, where both have one.
  absl::Status CheckModel(const Json& json) const {
    const auto model = json.find("model");
    if (model == json.end()) {
      return Error("model: missing; it says for which model the heads were chosen");
    }
    LAMINA_RETURN_IF_ERROR(CheckKeys(*model, "model", {"name", "layers", "kv_heads", "head_dim"}));
    LAMINA_ASSIGN_OR_RETURN(const uint32_t layers, Number(*model, "model", "layers"));
    LAMINA_ASSIGN_OR_RETURN(const uint32_t kv_heads, Number(*model, "model", "kv_heads"));
    LAMINA_ASSIGN_OR_RETURN(const uint32_t head_dim, Number(*model, "model", "head_dim"));
    const bool alike = std::all_of(layers_.begin(), layers_.end(), [&](const auto& layer) {
      return layer.kv_heads == kv_heads && layer.head_dim == head_dim;
    });
    if (layers != layers_.size() || !alike) {
      return Error("model: is one of ", layers, " layers with ", kv_heads, " KV heads of ",
                   head_dim, ", and this cluster's has ", layers_.size(), " with ",
                   layers_.empty() ? 0 : layers_[0].kv_heads, " of ",
                   layers_.empty() ? 0 : layers_[0].head_dim, "; name a file that was made for it");
    }
    const auto name = model->find("name");
    if (name == model->end()) {
      return absl::OkStatus();
    }
    if (!name->is_string()) {
      return Error("model.name: is no text");
    }
    const std::string named = name->get<std::string>();
    return named.empty() || model_.name.empty() || named == model_.name
               ? absl::OkStatus()
               : Error("model.name: '", ForeignText(named, kNameShown),
                       "' is another model than this cluster's, '", model_.name,
                       "'; name a file that was made for it");
  }

  absl::Status ReadLayer(const Json& json, const std::string& path,
                         StreamingHeads& streaming) const {
    LAMINA_RETURN_IF_ERROR(CheckKeys(json, path, {"layer", "heads"}));
    LAMINA_ASSIGN_OR_RETURN(const uint32_t layer, Number(json, path, "layer"));
    if (layer >= layers_.size()) {
      return Error(path, ".layer: ", layer, " is not in [0, ", layers_.size() - 1, "]");
    }
    const auto heads = json.find("heads");
    if (heads == json.end() || !heads->is_array() || heads->empty()) {
      return Error(path,
                   ".heads: missing, empty, or no list of KV heads; leave a layer out in "
                   "which none streams");
    }
    std::vector<uint32_t>& into = streaming.layers[layer];
    if (!into.empty()) {
      return Error(path, ".layer: ", layer, " comes twice; name all its heads at once");
    }
    const uint32_t kv_heads = layers_[layer].kv_heads;
    for (const Json& head : *heads) {
      if (!head.is_number_unsigned() || head.get<uint64_t>() >= kv_heads) {
        return Error(path, ".heads: ", head.dump(), " is no KV head of layer ", layer,
                     ", which are 0 to ", kv_heads - 1);
      }
      into.push_back(head.get<uint32_t>());
    }
    std::sort(into.begin(), into.end());
    if (const auto twice = std::adjacent_find(into.begin(), into.end()); twice != into.end()) {
      return Error(path, ".heads: ", *twice, " comes twice");
    }
    return absl::OkStatus();
  }

  const absl::string_view origin_;
  const model::ModelConfig& model_;
  const absl::Span<const AttentionDescriptor> layers_;
};

}  // namespace

absl::StatusOr<StreamingHeads> ParseStreamingFile(absl::string_view text, absl::string_view origin,
                                                  const model::ModelConfig& model,
                                                  absl::Span<const AttentionDescriptor> layers) {
  LAMINA_RETURN_IF_ERROR(CheckRequestJson(text, origin));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return Reader(origin, model, layers).Read(json);
}

absl::StatusOr<StreamingHeads> ReadStreamingFile(const std::string& path,
                                                 const model::ModelConfig& model,
                                                 absl::Span<const AttentionDescriptor> layers) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("fetch.streaming_heads: ", path, ": ", error.message()));
  }
  if (bytes == 0 || bytes > kBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("fetch.streaming_heads: ", path, " has ", bytes,
                                                   " bytes; it must have 1 to ", kBytesMax));
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return ParseStreamingFile(text, path, model, layers);
}

}  // namespace lamina::coordinator
