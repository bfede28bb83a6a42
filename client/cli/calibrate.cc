// SPDX-License-Identifier: Apache-2.0
//
// lamina calibrate: times of slices and attentions of a running cluster, as a calibration file.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/calibration_points.h"
#include "client/cli/calibrator.h"
#include "client/cli/command.h"
#include "client/cli/plan_files.h"
#include "common/status_macros.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] =
    R"(  lamina calibrate --model models/smollm2-135m-instruct.gguf --output calibration.json
  lamina plan --model M --load rate=5,input=512,output=128 --calibration DEVICE=calibration.json
The cluster should have nothing else to do. Rows decode at several numbers and lengths, and prompts
run by themselves; what nodes counted meanwhile becomes the curves of the file: slices, LM head,
attention, what waits for memory nodes cost, and links as the cluster measured them. Loads that the
cluster has no room for are left out. About two minutes.
)";

struct CalibrateFlags {
  std::string model;
  std::string device = "this host";
  std::string out;
  double seconds = 3;
};

absl::StatusOr<Json> Measure(const CalibrateFlags& flags, client::Client& client) {
  LAMINA_ASSIGN_OR_RETURN(const cost::Catalogue catalogue, LoadCatalogue(""));
  LAMINA_ASSIGN_OR_RETURN(const cost::ModelShape shape, LoadShape(catalogue, flags.model));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<client::ModelInfo> models, client.ListModels());
  if (models.empty() || models[0].vocabulary == 0) {
    return absl::FailedPreconditionError("the server names no model with a vocabulary");
  }
  LAMINA_RETURN_IF_ERROR(CheckServed(shape, models[0]));
  Calibrator calibrator(client, models[0], shape, {.measured = absl::Seconds(flags.seconds)});
  constexpr std::pair<uint32_t, uint32_t> kDecode[] = {
      {1, 64}, {1, 2000}, {2, 256}, {4, 512}, {8, 128}, {16, 128}, {16, 1500}, {32, 64}, {64, 64}};
  for (const auto& [rows, context] : kDecode) {
    std::fprintf(stderr, "%u rows at %u tokens\n", rows, context);
    LAMINA_RETURN_IF_ERROR(calibrator.Decode(rows, context));
  }
  for (const uint32_t tokens : {64u, 128u, 256u, 512u, 2000u}) {
    std::fprintf(stderr, "prompts of %u tokens\n", tokens);
    LAMINA_RETURN_IF_ERROR(calibrator.Prompts(tokens));
  }
  LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus status, client.Status());
  if (calibrator.points().slices.empty()) {
    return absl::FailedPreconditionError(
        "nothing was measured: every load was left out (see above)");
  }
  return CalibrationToJson(flags.device,
                           absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone()),
                           shape, calibrator.points(), status);
}

// The file of --output. It is opened before anything is measured, and what was in it stays until
// then.
class OutFile {
 public:
  // A new file goes away again until there is something to write, whatever ends the command.
  explicit OutFile(const std::string& path) : path_(path) {
    std::error_code none;
    const bool is_new = !std::filesystem::exists(path, none);
    file_.open(path, std::ios::app);
    if (!file_) {
      status_ = absl::UnavailableError(
          absl::StrCat("--output: cannot write '", path, "': ", std::strerror(errno)));
    } else if (is_new) {
      file_.close();
      std::filesystem::remove(path, none);
    }
  }

  const absl::Status& status() const { return status_; }

  absl::Status Write(const std::string& text) {
    std::error_code error;
    if (!file_.is_open()) {
      file_.open(path_, std::ios::trunc);
    } else if (std::filesystem::is_regular_file(path_, error)) {
      std::filesystem::resize_file(path_, 0, error);
    }
    file_ << text;
    file_.close();
    return file_.good() && !error
               ? absl::OkStatus()
               : absl::DataLossError(absl::StrCat("--output: cannot write '", path_, "'"));
  }

 private:
  const std::string path_;
  std::ofstream file_;
  absl::Status status_;
};

int Run(const Invocation& invocation, const CalibrateFlags& flags) {
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return Fail(client.status());
  }
  const std::unique_ptr<OutFile> out =
      flags.out.empty() ? nullptr : std::make_unique<OutFile>(flags.out);
  if (out != nullptr && !out->status().ok()) {
    return Fail(out->status());
  }
  const absl::StatusOr<Json> json = Measure(flags, **client);
  if (!json.ok()) {
    return Fail(json.status());
  }
  if (out == nullptr) {
    PrintJson(*json);
    return kExitOk;
  }
  const absl::Status written = out->Write(absl::StrCat(json->dump(1), "\n"));
  return written.ok() ? kExitOk : Fail(written);
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(
      app, invocation, "calibrate",
      "Measure a running cluster's slices and attentions, for plan and simulate", kExamples);
  const auto flags = std::make_shared<CalibrateFlags>();
  AddServerFlag(command, invocation);
  command
      ->add_option("--model", flags->model, "The files of the model that it serves: for its shape")
      ->required()
      ->type_name("MODEL");
  command->add_option("--device", flags->device, "What the file calls the device")
      ->type_name("NAME");
  command->add_option("--output,--out", flags->out, "Write the file here (default: stdout)")
      ->type_name("FILE");
  command->add_option("--seconds", flags->seconds, "Of each measurement (default: 3)")
      ->check(Within(0.5, 60))
      ->type_name("S");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
