// SPDX-License-Identifier: Apache-2.0
#include "config/model_name.h"

#include <gtest/gtest.h>

namespace lamina {
namespace {

TEST(ModelNameTest, IsTheLastPartOfThePath) {
  EXPECT_EQ(ModelNameOf("/models/smollm2"), "smollm2");
  EXPECT_EQ(ModelNameOf("smollm2"), "smollm2");
  EXPECT_EQ(ModelNameOf("/models/smollm2//"), "smollm2");
  EXPECT_EQ(ModelNameOf("/models/smollm2/."), "smollm2");
  EXPECT_EQ(ModelNameOf("/"), "/");
}

TEST(ModelNameTest, LosesTheEndingOfGgufAlone) {
  EXPECT_EQ(ModelNameOf("models/smollm2-135m-instruct.gguf"), "smollm2-135m-instruct");
  EXPECT_EQ(ModelNameOf("/models/Llama-3.1-8B-Instruct"), "Llama-3.1-8B-Instruct");
  EXPECT_EQ(ModelNameOf("/models/Llama-3.1-8B-Instruct/"), "Llama-3.1-8B-Instruct");
  EXPECT_EQ(ModelNameOf("/models/Qwen2.5-0.5B.Q4_K_M.gguf"), "Qwen2.5-0.5B.Q4_K_M");
}

TEST(ModelNameTest, IsThatOfAllPartsForTheFirst) {
  EXPECT_EQ(ModelNameOf("/models/Llama-70B-Q4_K_M-00001-of-00002.gguf"), "Llama-70B-Q4_K_M");
  EXPECT_EQ(ModelNameOf("/models/L-00002-of-00002.gguf"), "L-00002-of-00002");
  EXPECT_EQ(ModelNameOf("/models/L-00001-of-2.gguf"), "L-00001-of-2");
  EXPECT_EQ(ModelNameOf("/models/L-00001-of-00002"), "L-00001-of-00002") << "a folder";
}

TEST(ModelNameTest, IsTheRepositorysForASnapshotOfHuggingFacesCache) {
  const std::string hub = "/models/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/";
  EXPECT_EQ(ModelNameOf(hub + "0e9e39f249a16976918f6564b8830bc894c89659"), "Llama-3.1-8B-Instruct");
  EXPECT_EQ(ModelNameOf(hub + "0e9e39f249a16976918f6564b8830bc894c89659/"),
            "Llama-3.1-8B-Instruct");
  EXPECT_EQ(ModelNameOf("/models/hub/models--gpt2/snapshots/607a30d7"), "gpt2");
  EXPECT_EQ(ModelNameOf(hub + "0e9e39f2/small.gguf"), "small") << "a file of it has its own name";
  EXPECT_EQ(ModelNameOf("/models/snapshots/smollm2"), "smollm2");
}

}  // namespace
}  // namespace lamina
