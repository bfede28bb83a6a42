// SPDX-License-Identifier: Apache-2.0
//
// Each run of a test has a folder of its own, of which testing::TempDir() tells, and which is gone
// when the run ends. So tests of two build folders, or of two users, run at once.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace {

class TestFolder {
 public:
  TestFolder() {
    std::string path = std::filesystem::temp_directory_path() / "lamina-test-XXXXXX";
    // Programs that a test starts have its folder.
    if (getenv("TEST_TMPDIR") == nullptr && mkdtemp(path.data()) != nullptr) {
      path_ = path;
      setenv("TEST_TMPDIR", path.c_str(), 1);
    }
  }
  ~TestFolder() {
    if (getpid() == owner_ && !path_.empty()) {  // Else a fork of the test.
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    }
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

 private:
  const pid_t owner_ = getpid();
  std::string path_;
};

const TestFolder folder;

}  // namespace
