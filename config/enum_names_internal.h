// SPDX-License-Identifier: Apache-2.0
//
// The words of the cluster file for its enums, for reading, writing and messages.

#pragma once

#include <array>
#include <utility>

#include "absl/strings/string_view.h"
#include "config/cluster_config.h"

namespace lamina::internal {

template <typename Enum, size_t N>
using EnumNames = std::array<std::pair<absl::string_view, Enum>, N>;

inline constexpr EnumNames<PipelineMode, 3> kPipelineModes = {
    {{"rotational", PipelineMode::kRotational},
     {"fixed", PipelineMode::kFixed},
     {"sequential", PipelineMode::kSequential}}};
inline constexpr EnumNames<QueryFirst, 3> kQueryFirst = {
    {{"auto", QueryFirst::kAuto}, {"always", QueryFirst::kAlways}, {"never", QueryFirst::kNever}}};
inline constexpr EnumNames<DeviceWaits, 2> kDeviceWaits = {
    {{"auto", DeviceWaits::kAuto}, {"off", DeviceWaits::kOff}}};
inline constexpr EnumNames<WindowPlace, 3> kWindowPlaces = {
    {{"auto", WindowPlace::kAuto}, {"host", WindowPlace::kHost}, {"device", WindowPlace::kDevice}}};
inline constexpr EnumNames<Partition, 4> kPartitions = {{{"request", Partition::kRequest},
                                                         {"head", Partition::kHead},
                                                         {"token_range", Partition::kTokenRange},
                                                         {"auto", Partition::kAuto}}};
inline constexpr EnumNames<KvForm, 2> kKvForms = {
    {{"bf16", KvForm::kBF16}, {"int8", KvForm::kInt8}}};
inline constexpr EnumNames<AttentionArithmetic, 5> kAttentions = {
    {{"auto", AttentionArithmetic::kAuto},
     {"canonical", AttentionArithmetic::kCanonical},
     {"pairs", AttentionArithmetic::kPairs},
     {"tiles", AttentionArithmetic::kTiles},
     {"tensor", AttentionArithmetic::kTensor}}};
inline constexpr EnumNames<WeightsForm, 4> kWeightsForms = {{{"auto", WeightsForm::kAuto},
                                                             {"packed", WeightsForm::kPacked},
                                                             {"bf16", WeightsForm::kBF16},
                                                             {"int8", WeightsForm::kInt8}}};
inline constexpr EnumNames<ComputeRole, 2> kComputeRoles = {
    {{"compute", ComputeRole::kCompute}, {"prefill", ComputeRole::kPrefill}}};
inline constexpr EnumNames<PrefillMode, 2> kPrefillModes = {
    {{"inline", PrefillMode::kInline}, {"dedicated", PrefillMode::kDedicated}}};
inline constexpr EnumNames<ServiceOrderKind, 2> kServiceOrders = {
    {{"fcfs", ServiceOrderKind::kFirstComeFirstServed}, {"priority", ServiceOrderKind::kPriority}}};
inline constexpr EnumNames<PrefixCacheMode, 2> kPrefixCacheModes = {
    {{"auto", PrefixCacheMode::kAuto}, {"off", PrefixCacheMode::kOff}}};
inline constexpr EnumNames<bool, 2> kTruths = {{{"true", true}, {"false", false}}};
inline constexpr EnumNames<SparseTokens, 3> kSparseTokens = {
    {{"window_sums", SparseTokens::kWindowSums},
     {"local", SparseTokens::kLocal},
     {"strided", SparseTokens::kStrided}}};
inline constexpr EnumNames<RecomputeFrom, 2> kRecomputeFrom = {
    {{"activations", RecomputeFrom::kActivations}, {"tokens", RecomputeFrom::kTokens}}};
inline constexpr EnumNames<LogLevel, 4> kLogLevels = {{{"debug", LogLevel::kDebug},
                                                       {"info", LogLevel::kInfo},
                                                       {"warning", LogLevel::kWarning},
                                                       {"error", LogLevel::kError}}};
inline constexpr EnumNames<LogFormat, 2> kLogFormats = {
    {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}};

template <typename Enum, size_t N>
absl::string_view EnumName(const EnumNames<Enum, N>& names, Enum value) {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) {
      return name;
    }
  }
  return "?";
}

}  // namespace lamina::internal
