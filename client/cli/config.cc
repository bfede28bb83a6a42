// SPDX-License-Identifier: Apache-2.0
//
// lamina config: the effective cluster file, as the daemons will see it. Local; no server needed.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "common/host_port.h"
#include "config/cluster_config.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina config --cluster deploy/clusters/local.yaml
  lamina config --cluster local.yaml --set pipeline.lanes=1 --set memory.m0.capacity=1GiB
  lamina config --cluster local.yaml --list
--list prints one line per daemon: role, name, host, cores ("-" for none), address ("-" for none).
Every key is in docs/configuration.md.
)";

struct ConfigFlags {
  std::string cluster;
  std::vector<std::string> overrides;
  bool list = false;
};

std::string Cores(const std::vector<int>& cores) {
  return cores.empty() ? "-" : absl::StrJoin(cores, ",");
}

Json Daemons(const ClusterConfig& config) {
  const auto daemon = [](const char* role, const std::string& name, const std::string& host,
                         const std::string& cores, const std::string& address) -> Json {
    return {{"role", role}, {"name", name}, {"host", host}, {"cores", cores}, {"address", address}};
  };
  const std::string& listen = config.coordinator_listen;
  Json daemons = Json::array();
  daemons.push_back(daemon("coordinator", "coordinator", ParseHostPort(listen)->host,
                           Cores(config.coordinator_cores), listen));
  if (const std::string& http = config.gateway.listen; !http.empty()) {
    daemons.push_back(
        daemon("gateway", "gateway", ParseHostPort(http)->host, Cores(config.gateway.cores), http));
  }
  for (const ComputeNodeConfig& node : config.compute) {
    daemons.push_back(daemon("compute", node.name, node.host, Cores(node.cores), "-"));
  }
  for (const MemoryNodeConfig& node : config.memory) {
    daemons.push_back(daemon("memory", node.name, node.host, Cores(node.cores), "-"));
  }
  return daemons;
}

// The files that the coordinator and the gateway read or write, by their keys.
Json FilesOfTheFront(const ClusterConfig& config) {
  Json files = Json::object();
  const std::pair<const char*, const std::string&> paths[] = {
      {"chat_template", config.chat_template},
      {"fetch.streaming_heads", config.fetch.streaming_heads},
      {"coordinator.spans", config.coordinator_spans},
      {"coordinator.journal", config.coordinator_journal},
      {"gateway.api_keys_file", config.gateway.api_keys_file},
      {"gateway.tls_certificate", config.gateway.tls_certificate},
      {"gateway.tls_key", config.gateway.tls_key}};
  for (const auto& [key, path] : paths) {
    if (!path.empty()) {
      files[key] = path;
    }
  }
  return files;
}

// Where daemons serve /metrics and /health, by their names.
Json HttpOf(const ClusterConfig& config) {
  Json http = Json::object();
  const auto add = [&http](const std::string& name, const std::string& address) {
    if (!address.empty()) {
      http[name] = address;
    }
  };
  add("coordinator", config.coordinator_http);
  for (const ComputeNodeConfig& node : config.compute) {
    add(node.name, node.http);
  }
  for (const MemoryNodeConfig& node : config.memory) {
    add(node.name, node.http);
  }
  return http;
}

Json Tls(const TlsFiles& tls) {
  return {{"ca", tls.ca}, {"certificate", tls.certificate}, {"key", tls.key}};
}

int Run(const Invocation& invocation, const ConfigFlags& flags) {
  const absl::StatusOr<ClusterConfig> config = LoadClusterConfig(flags.cluster, flags.overrides);
  if (!config.ok()) {
    return Fail(config.status());
  }
  const Json daemons = Daemons(*config);
  if (invocation.json) {
    PrintJson({{"model", config->model},
               {"cluster_token_file", config->cluster_token_file},
               {"advertise", config->coordinator_advertise},
               {"bundle_dir", config->bundle.dir},
               {"tls", Tls(config->tls)},
               {"gateway_tls", !config->gateway.tls_certificate.empty()},
               {"files", FilesOfTheFront(*config)},
               {"http", HttpOf(*config)},
               {"daemons", daemons},
               {"yaml", ToYaml(*config)}});
  } else if (flags.list) {
    for (const Json& daemon : daemons) {
      std::vector<std::string> words;
      for (const auto& [key, value] : daemon.items()) {
        words.push_back(value.get<std::string>());
      }
      std::printf("%s\n", absl::StrJoin(words, " ").c_str());
    }
  } else {
    std::printf("%s", ToYaml(*config).c_str());
  }
  return kExitOk;
}

}  // namespace

void AddConfigCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, invocation, "config",
                                 "Check a cluster file and print what it means", kExamples);
  const auto flags = std::make_shared<ConfigFlags>();
  command->add_option("--cluster", flags->cluster, "The cluster file")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--set", flags->overrides,
                   "Override a key, like pipeline.mode=fixed; repeat for more")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command->add_flag("--list", flags->list, "One line per daemon, for scripts");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
