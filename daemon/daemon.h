// SPDX-License-Identifier: Apache-2.0
//
// What the mains of all daemons share: flags, logging, signals, pinning, the ready file.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cluster_secret.h"
#include "config/cluster_config.h"
#include "daemon/service_manager.h"

namespace lamina::daemon {

struct DaemonFlags {
  std::string cluster_file;  // Empty: none, and `overrides` have every key.
  std::string name;
  std::vector<std::string> overrides;  // --set key=value
  std::string coordinator;             // host:port; empty: the cluster file's.
  std::string cluster_token_file;      // Empty: the cluster file's.
  std::string ready_file;
  // Empty: the cluster file's.
  std::string log_level;
  std::string log_format;
};

// Parses the command line; prints --help or --version, or a usage error, and then returns the exit
// status instead of flags. `purpose` opens the help text. Sets up logging, raises the soft limit on
// open files to the hard one, and blocks SIGTERM, SIGINT and SIGHUP in this and all later threads:
// call it before any other thread starts, and EndOnTermination() soon.
struct ParsedFlags {
  std::optional<int> exit_status;
  DaemonFlags flags;
};
ParsedFlags ParseDaemonFlags(int argc, char** argv, const std::string& purpose,
                             const std::string& default_name);

// Loads the cluster file, or without one what --set says, sets up logging as it says where no flag
// does, and logs the effective configuration.
absl::StatusOr<ClusterConfig> LoadDaemonConfig(const DaemonFlags& flags);

// The secret of the cluster's members: of the file that the flag names, else of the cluster file's.
// None where neither names one. Errors: of ClusterSecret::Read().
absl::StatusOr<ClusterSecret> LoadClusterSecret(const DaemonFlags& flags,
                                                const ClusterConfig& config);

// Where a node or the gateway finds the coordinator: as the flag says, else
// ClusterConfig::CoordinatorAddress().
// Errors: kInvalidArgument  neither names a port.
absl::StatusOr<std::string> CoordinatorAddress(const DaemonFlags& flags,
                                               const ClusterConfig& config);

// The error of a daemon whose name is not among `names`, those of its role in the cluster file.
absl::Status NoNodeNamed(absl::string_view role, const std::string& name,
                         const std::vector<std::string>& names);

// Errors: kInvalidArgument  this process may not use some of `cores`; names them.
absl::Status RequireCores(const std::vector<int>& cores);

// Keeps this thread, and those that it starts from now on, to `cores`; empty: to none. A host that
// refuses is a warning.
// Errors: of RequireCores().
absl::Status KeepToCores(const std::vector<int>& cores);

// Has this thread, and those that it starts from now on, take memory near `cores`; empty: as it is.
// A host that refuses is a warning.
void TakeMemoryNear(const std::vector<int>& cores);

// Has SIGTERM and SIGINT end the process at once, with exit status 0 (1 if it is not the first),
// while there are no TerminationHandlers: reading weights may take minutes, and giving memory back
// seconds. Call it once, first of all that takes time. SIGHUP is no more than a line in the log
// until OnHangup(). Ignores SIGPIPE and SIGXFSZ: a write to a reader that is gone, or behind the
// limit of a file's size, is an error. Has logs written by a thread from now on.
void EndOnTermination();

// While it lives, `first` is called on the first SIGTERM or SIGINT and `second` on the next, from
// the thread that EndOnTermination() started. Its end waits for a handler that runs: then what they
// use may go. One at a time. Requires: EndOnTermination() was called.
class TerminationHandlers {
 public:
  TerminationHandlers(std::function<void()> first, std::function<void()> second);
  ~TerminationHandlers();
  TerminationHandlers(const TerminationHandlers&) = delete;
  TerminationHandlers& operator=(const TerminationHandlers&) = delete;
};

// From now on calls `handler` on each SIGHUP, from that same thread; nullptr: none. No handler runs
// any more that an earlier call named. Requires: EndOnTermination() was called.
void OnHangup(std::function<void()> handler);

// Writes `text` to the ready file, whole or not at all. Does nothing without one.
absl::Status WriteReadyFile(const DaemonFlags& flags, const std::string& text);

// Has CUDA give streams queues of their own, up to 32 of them: of its usual 8, streams share some,
// and one's work stands behind another's kernel that polls, maybe for that very work. CUDA reads
// this setting from the environment when a device is first used; one that is there already stays.
// Call it before any other thread starts.
void GiveCudaStreamsTheirOwnQueues();

// Who started this daemon, by NOTIFY_SOCKET, and by WATCHDOG_USEC and WATCHDOG_PID if that is this
// process.
std::unique_ptr<ServiceManager> ServiceManagerOfEnvironment();

// Logs `status` and returns the exit status: 0 ok, 1 the work failed, 2 wrong usage.
int ExitStatus(const absl::Status& status);

}  // namespace lamina::daemon
