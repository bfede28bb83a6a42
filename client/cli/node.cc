// SPDX-License-Identifier: Apache-2.0
//
// lamina node: adds a memory node to a running cluster, or drains one.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/other_host.h"
#include "client/member_change.h"
#include "common/cluster_secret.h"
#include "common/host_port.h"
#include "common/status_macros.h"
#include "common/tls.h"
#include "common/units.h"
#include "config/cluster_config.h"

namespace lamina::cli {
namespace {

constexpr char kAdd[] = "add";
constexpr char kDrain[] = "drain";

constexpr char kExamples[] =
    R"(  lamina node add m2 --cluster my.yaml --host b.example --capacity 8GiB
  lamina node drain m0 --cluster my.yaml
  lamina node drain m0 --cluster-token-file cluster.token --json
add: the coordinator lets a memory node of that name join; start it then. drain: its sequences go on
elsewhere, and it ends; clients see a pause. --cluster says where the secret and certificates are.
A coordinator that restarts goes by its cluster file: the command prints what to change there.
)";

struct NodeFlags {
  std::string action;
  std::string name;
  std::string cluster;
  std::vector<std::string> overrides;
  std::string cluster_token_file;
  std::string tls_certificate;
  std::string tls_key;
  std::string host = "localhost";
  std::string capacity;
};

absl::StatusOr<client::MemberChange> ChangeOf(const Invocation& invocation,
                                              const NodeFlags& flags) {
  if (!IsServerAddress(invocation.server)) {
    return UsageError(
        absl::StrCat("'", invocation.server,
                     "' is not an address like 127.0.0.1:7400; see --server and LAMINA_SERVER"));
  }
  client::MemberChange change{.server = invocation.server,
                              .kind = flags.action == kAdd ? client::MemberChangeKind::kAdd
                                                           : client::MemberChangeKind::kDrain,
                              .node = flags.name};
  std::string token_file = flags.cluster_token_file;
  if (!flags.cluster.empty()) {
    LAMINA_ASSIGN_OR_RETURN(const ClusterConfig config,
                            LoadClusterConfig(flags.cluster, flags.overrides));
    change.tls = config.tls;
    token_file = token_file.empty() ? config.cluster_token_file : token_file;
  }
  if (!invocation.tls_ca.empty()) {
    change.tls.ca = invocation.tls_ca;
  }
  if (!flags.tls_certificate.empty() || !flags.tls_key.empty()) {
    change.tls.certificate = flags.tls_certificate;
    change.tls.key = flags.tls_key;
  }
  LAMINA_RETURN_IF_ERROR(CheckTlsFiles(change.tls));
  if (!token_file.empty()) {
    LAMINA_ASSIGN_OR_RETURN(change.secret, ClusterSecret::Read(token_file));
  }
  return change;
}

// What the node is in a cluster file.
std::string FileLine(const NodeFlags& flags) {
  return absl::StrCat("- {name: ", flags.name, ", host: ", flags.host,
                      ", capacity: ", flags.capacity.empty() ? "SIZE" : flags.capacity, "}");
}

std::string NextSteps(const NodeFlags& flags, const std::string& server) {
  if (flags.action == kDrain) {
    return absl::StrCat("The coordinator forgets this when it restarts: take ", flags.name,
                        " out of its cluster file before, or it waits for it then.\n"
                        "`lamina node add ",
                        flags.name, "` lets a node of this name join again.\n");
  }
  return absl::StrCat(
      "Add this line under memory: of the cluster file, and start the node with it on its host:\n"
      "  ",
      FileLine(flags), "\n  lamina-memory --cluster FILE --name ", flags.name, " --coordinator ",
      ServerSeenFrom(flags.host, ThisHostsName(), server), TokenFlag(flags.cluster_token_file),
      "\nThe coordinator forgets this when it restarts: give its own cluster file the line before, "
      "or it refuses the node then.\n");
}

int Run(const Invocation& invocation, const NodeFlags& flags) {
  if (flags.action == kDrain && !flags.capacity.empty()) {
    return FailUsage("node", "--capacity is of add");
  }
  if (!flags.capacity.empty() && !ParseBytes(flags.capacity).ok()) {
    return FailUsage("node",
                     absl::StrCat("--capacity: ", ParseBytes(flags.capacity).status().message()));
  }
  const absl::StatusOr<client::MemberChange> change = ChangeOf(invocation, flags);
  if (!change.ok()) {
    return Fail(change.status());
  }
  const absl::StatusOr<std::string> done = client::ChangeMembers(*change);
  if (!done.ok()) {
    return Fail(done.status());
  }
  if (invocation.json) {
    Json line = {{"node", flags.name}, {"action", flags.action}, {"done", *done}};
    if (flags.action == kAdd) {
      line["memory"] = FileLine(flags);
    }
    PrintJson(line);
  } else {
    std::printf("%s\n%s", done->c_str(), NextSteps(flags, invocation.server).c_str());
  }
  return kExitOk;
}

}  // namespace

void AddNodeCommand(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<NodeFlags>();
  CLI::App* command = AddCommand(app, invocation, "node",
                                 "Add a memory node to a running cluster, or drain one", kExamples);
  command->add_option("ACTION", flags->action, "add or drain")
      ->required()
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            return text == kAdd || text == kDrain
                       ? ""
                       : absl::StrCat("'", text, "' is neither add nor drain");
          },
          ""));
  command->add_option("NAME", flags->name, "The memory node's name")->required();
  AddServerFlag(command, invocation);
  command
      ->add_option("--cluster", flags->cluster,
                   "The cluster file: where the secret and the certificates are")
      ->type_name("FILE");
  command->add_option("--set", flags->overrides, "Another value for a key of the cluster file")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command
      ->add_option("--cluster-token-file", flags->cluster_token_file,
                   "The cluster's secret (default: the cluster file's)")
      ->type_name("FILE");
  command
      ->add_option("--tls-certificate", flags->tls_certificate,
                   "A certificate of the node, of a cluster with TLS (default: the cluster file's)")
      ->type_name("FILE");
  command->add_option("--tls-key", flags->tls_key, "Its key")->type_name("FILE");
  command
      ->add_option("--host", flags->host,
                   "Where the node will run, for the line to put into the cluster file "
                   "(default: localhost)")
      ->type_name("HOST");
  command
      ->add_option("--capacity", flags->capacity,
                   "What it will have for KV, like 8GiB, for that line")
      ->type_name("SIZE");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
