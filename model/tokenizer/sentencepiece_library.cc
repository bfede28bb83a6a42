// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "model/tokenizer/sentencepiece_library_internal.h"

namespace lamina::model {
namespace {

// lib/ next to the program's bin/, for when the run path does not count: sanitizers put their own
// dlopen() before the system's, which then searches for their library and not for the program.
std::string PathNextToProgram() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path() / ".." / "lib" / LAMINA_SENTENCEPIECE_PLUGIN).string();
}

// Found next to the program or in ../lib (the targets' run path). Never unloaded: its objects may
// live to the end of the process.
SentencePieceLoader* LoadPlugin(std::string* error) {
  // RTLD_DEEPBIND puts the plugin's own symbols before the program's protobuf; sanitizers cannot
  // have it, and the tests that they run here link no protobuf.
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | (LAMINA_PLUGIN_DEEPBIND != 0 ? RTLD_DEEPBIND : 0);
  void* plugin = dlopen(LAMINA_SENTENCEPIECE_PLUGIN, kFlags);
  if (plugin == nullptr) {
    plugin = dlopen(PathNextToProgram().c_str(), kFlags);
  }
  void* entry = plugin == nullptr ? nullptr : dlsym(plugin, kSentencePieceEntry);
  if (entry == nullptr) {
    const char* reason = dlerror();
    *error = std::string("could not load ") + LAMINA_SENTENCEPIECE_PLUGIN + ": " +
             (reason == nullptr ? "no reason given" : reason);
  }
  return reinterpret_cast<SentencePieceLoader*>(entry);
}

}  // namespace

std::unique_ptr<SentencePieceLibrary> SentencePieceLibrary::Load(const std::string& serialized,
                                                                 std::string* error) {
  static std::string load_error;
  static SentencePieceLoader* const entry = LoadPlugin(&load_error);
  if (entry == nullptr) {
    *error = load_error;
    return nullptr;
  }
  return std::unique_ptr<SentencePieceLibrary>(entry(serialized, error));
}

}  // namespace lamina::model
