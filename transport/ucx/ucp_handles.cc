// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/ucx/ucp_handles_internal.h"

namespace lamina::transport {
namespace {

// What is set, and why. A version of UCX that lacks one does without.
struct Setting {
  absl::string_view name;
  const char* value;
};
constexpr Setting kSettings[] = {
    // Signals rest on what goes to one peer going over one lane.
    {"MAX_RMA_RAILS", "1"},
    {"MAX_EAGER_RAILS", "1"},
    // The strong kind waits for the network inside the call.
    {"FENCE_MODE", "weak"},
    // PeerWatch looks after peers that say nothing. With a keepalive of UCX an endpoint over RDMA
    // sends
    // its first message over the lane of the keepalive, and UCX 1.13 ends the process when such an
    // endpoint is closed before the peer has answered (ADR 0066).
    {"KEEPALIVE_INTERVAL", "inf"},
};

struct ReleaseConfig {
  void operator()(ucp_config_t* config) const noexcept { ucp_config_release(config); }
};
using UcpConfig = std::unique_ptr<ucp_config_t, ReleaseConfig>;

// The settings of the environment.
absl::StatusOr<UcpConfig> ReadConfig() {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return UcsError("reading its configuration (variables UCX_*)", status);
  }
  return UcpConfig(config);
}

// What `write` prints; empty when there is no memory for it.
template <typename Write>
std::string Printed(const Write& write) {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) {
    return "";
  }
  write(stream);
  fclose(stream);
  std::string printed(text, bytes);
  free(text);
  return printed;
}

// All settings, each on a line.
std::string Print(const ucp_config_t* config) {
  return Printed(
      [&](FILE* stream) { ucp_config_print(config, stream, nullptr, UCS_CONFIG_PRINT_CONFIG); });
}

// The value of a setting, or nothing where this UCX lacks it.
std::optional<std::string> ValueOf(absl::string_view printed, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(printed, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (absl::StripPrefix(parts.first, "UCX_") == name) {
      return std::string(parts.second);
    }
  }
  return std::nullopt;
}

// Unless the URI or UCX_TLS names transports: all but RDMA, which is what verbs:// is for (ADR
// 0028). Where there is no RDMA device it must not be named: UCX would complain on stdout.
constexpr char kWithoutRdma[] = "^ib";

constexpr char kLoopbackDevice[] = "lo";

bool HasRdmaDevice() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

bool HasSharedMemory(absl::string_view transports) {
  if (transports == kWithoutRdma) {
    return true;
  }
  for (const absl::string_view name : absl::StrSplit(transports, ',')) {
    if (name == "all" || name == "sm" || name == "shm" || name == "mm" || name == "sysv" ||
        name == "posix") {
      return true;
    }
  }
  return false;
}

bool NamesRdma(absl::string_view transports) {
  for (const absl::string_view name : absl::StrSplit(transports, ',')) {
    if (name == "all" || absl::StartsWith(name, "rc") || absl::StartsWith(name, "dc") ||
        absl::StartsWith(name, "ud") || absl::StartsWith(name, "ib")) {
      return true;
    }
  }
  return false;
}

// Whether TCP is all that UCX may use of the network: what is set for devices holds for those of
// RDMA too.
bool TakesTcpAlone(absl::string_view transports) {
  if (transports == kWithoutRdma) {
    return true;
  }
  const std::vector<absl::string_view> names = absl::StrSplit(transports, ',');
  const bool tcp = std::any_of(names.begin(), names.end(), [](absl::string_view name) {
    return name == "all" || name == "tcp";
  });
  return tcp && (!NamesRdma(transports) || !HasRdmaDevice());
}

absl::Status Modify(ucp_config_t* config, absl::string_view name, absl::string_view value) {
  const ucs_status_t status =
      ucp_config_modify(config, std::string(name).c_str(), std::string(value).c_str());
  return status == UCS_OK ? absl::OkStatus()
                          : UcsError(absl::StrCat("setting ", name, " to \"", value, "\""), status);
}

absl::Status Configure(ucp_config_t* config, absl::string_view transports, PeerReach reach) {
  if (transports.empty() && HasRdmaDevice() && ValueOf(Print(config), "TLS") == "all") {
    transports = kWithoutRdma;
  }
  if (!transports.empty()) {
    LAMINA_RETURN_IF_ERROR(Modify(config, "TLS", transports));
  }
  const std::string printed = Print(config);
  for (const Setting& setting : kSettings) {
    if (ValueOf(printed, setting.name).has_value()) {
      LAMINA_RETURN_IF_ERROR(Modify(config, setting.name, setting.value));
    }
  }
  const std::string taken = ValueOf(printed, "TLS").value_or("all");
  if (reach == PeerReach::kThisHost && TakesTcpAlone(taken) &&
      ValueOf(printed, "NET_DEVICES") == "all") {
    LAMINA_RETURN_IF_ERROR(Modify(config, "NET_DEVICES", kLoopbackDevice));
  }
  if (HasSharedMemory(taken)) {
    // Without it shared memory is not offered to endpoints that report errors.
    return Modify(config, "MM_ERROR_HANDLING", "y");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UcsError(absl::string_view what, ucs_status_t status) {
  const std::string message = absl::StrCat("ucx: ", what, ": ", ucs_status_string(status));
  switch (static_cast<int>(status)) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return absl::ResourceExhaustedError(message);
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_UNSUPPORTED:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::StatusOr<std::vector<std::string>> NamedDevices() {
  LAMINA_ASSIGN_OR_RETURN(const UcpConfig config, ReadConfig());
  const std::string named = ValueOf(Print(config.get()), "NET_DEVICES").value_or("all");
  std::vector<std::string> devices;
  if (named != "all") {
    devices = absl::StrSplit(named, ',');
  }
  return devices;
}

absl::StatusOr<bool> TakesRdma(absl::string_view transports) {
  if (!HasRdmaDevice()) {
    return false;
  }
  if (!transports.empty()) {
    return NamesRdma(transports);
  }
  LAMINA_ASSIGN_OR_RETURN(const UcpConfig config, ReadConfig());
  const std::string named = ValueOf(Print(config.get()), "TLS").value_or("all");
  return named != "all" && NamesRdma(named);  // "all" becomes kWithoutRdma.
}

absl::StatusOr<UcpContext> MakeUcpContext(absl::string_view transports, PeerReach reach) {
  LAMINA_ASSIGN_OR_RETURN(const UcpConfig config, ReadConfig());
  LAMINA_RETURN_IF_ERROR(Configure(config.get(), transports, reach));
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM;
  ucp_context_h context = nullptr;
  if (const ucs_status_t status = ucp_init(&params, config.get(), &context); status != UCS_OK) {
    return UcsError(absl::StrCat("no transport",
                                 transports.empty() ? "" : absl::StrCat(" of \"", transports, "\""),
                                 " can be used here; `ucx_info -d` lists those of this host"),
                    status);
  }
  return UcpContext(context);
}

absl::StatusOr<bool> HasCudaMemory(ucp_context_h context) {
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (const ucs_status_t status = ucp_context_query(context, &attributes); status != UCS_OK) {
    return UcsError("asking for kinds of memory", status);
  }
  return (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

absl::StatusOr<UcpWorker> MakeUcpWorker(ucp_context_h context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // One thread at a time; which one may change.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  if (const ucs_status_t status = ucp_worker_create(context, &params, &worker); status != UCS_OK) {
    return UcsError("making a worker", status);
  }
  return UcpWorker(worker);
}

absl::StatusOr<std::string> AddressOf(ucp_worker_h worker) {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (const ucs_status_t status = ucp_worker_get_address(worker, &address, &bytes);
      status != UCS_OK) {
    return UcsError("asking for the worker's address", status);
  }
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker, address);
  return copy;
}

absl::StatusOr<UcpMemory> UcpMemory::Map(ucp_context_h context,
                                         const ucp_mem_map_params_t& params) {
  ucp_mem_h handle = nullptr;
  if (const ucs_status_t status = ucp_mem_map(context, &params, &handle); status != UCS_OK) {
    return UcsError(absl::StrCat("registering ", FormatBytes(params.length),
                                 " (limits: `ulimit -l`, `ipcs -lm`, /dev/shm)"),
                    status);
  }
  UcpMemory memory(context, handle);
  memory.data_ = static_cast<std::byte*>(params.address);
  memory.bytes_ = params.length;
  return memory;
}

absl::StatusOr<UcpMemory> UcpMemory::Allocate(ucp_context_h context, size_t bytes) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  LAMINA_ASSIGN_OR_RETURN(UcpMemory memory, Map(context, params));
  ucp_mem_attr_t attributes = {};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  if (const ucs_status_t status = ucp_mem_query(memory.handle_, &attributes); status != UCS_OK) {
    return UcsError("asking for allocated memory", status);
  }
  memory.data_ = static_cast<std::byte*>(attributes.address);
  // Also makes every page present, so that the data path takes no faults.
  std::memset(memory.data(), 0, bytes);
  return memory;
}

absl::StatusOr<UcpMemory> UcpMemory::Register(ucp_context_h context, const void* data, size_t bytes,
                                              ucs_memory_type_t type) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = const_cast<void*>(data);
  params.length = bytes;
  params.memory_type = type;
  // The handle's own address is that of UCX's cached registration, which may begin earlier.
  return Map(context, params);
}

UcpMemory::UcpMemory(UcpMemory&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)),
      handle_(std::exchange(other.handle_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

UcpMemory& UcpMemory::operator=(UcpMemory&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(handle_, other.handle_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

UcpMemory::~UcpMemory() {
  if (handle_ != nullptr) {
    ucp_mem_unmap(context_, handle_);
  }
}

absl::StatusOr<std::string> UcpMemory::PackRemoteKey() const {
  void* packed = nullptr;
  size_t bytes = 0;
  if (const ucs_status_t status = ucp_rkey_pack(context_, handle_, &packed, &bytes);
      status != UCS_OK) {
    return UcsError("packing a remote key", status);
  }
  std::string copy(static_cast<const char*>(packed), bytes);
  ucp_rkey_buffer_release(packed);
  return copy;
}

absl::StatusOr<UcpRemoteKey> UnpackRemoteKey(ucp_ep_h endpoint, absl::string_view packed) {
  ucp_rkey_h key = nullptr;
  if (const ucs_status_t status = ucp_ep_rkey_unpack(endpoint, packed.data(), &key);
      status != UCS_OK) {
    return absl::UnavailableError(UcsError("opening the peer's memory", status).message());
  }
  return UcpRemoteKey(key);
}

// Lines look like "#  lane[0]:  5:tcp/eth0.0 md[2]  -> md[2]/tcp/sysdev[255] rma am".
EndpointLanes DescribeEndpoint(ucp_ep_h endpoint) {
  EndpointLanes lanes;
  const std::string printed = Printed([&](FILE* stream) { ucp_ep_print_info(endpoint, stream); });
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(printed, '\n')) {
    const size_t colon = line.find("]:");
    if (line.find("lane[") == absl::string_view::npos || colon == absl::string_view::npos) {
      continue;
    }
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(colon + 2), ' ', absl::SkipWhitespace());
    if (words.empty() || words[0].find(':') == absl::string_view::npos) {
      continue;
    }
    absl::string_view name = words[0].substr(words[0].find(':') + 1);
    name = absl::StripSuffix(name.substr(0, name.rfind('.')), "/memory");
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.emplace_back(name);
    }
    const bool writes = std::find(words.begin(), words.end(), "rma") != words.end();
    lanes.has_remote_writes =
        lanes.has_remote_writes ||
        (writes && (absl::StartsWith(name, "rc_") || absl::StartsWith(name, "dc_")));
  }
  lanes.names = absl::StrJoin(names, ", ");
  return lanes;
}

}  // namespace lamina::transport
