// SPDX-License-Identifier: Apache-2.0
#include "model/architectures/architecture.h"

namespace lamina::model {

const std::vector<RefusedArchitecture>& RefusedArchitectures() {
  static const auto* const kRefused = new std::vector<RefusedArchitecture>{
      {{"qwen3_next", "qwen3next", "qwen3_5", "qwen3_5_moe", "kimi_linear"},
       "Qwen3-Next, Qwen3.5, Kimi Linear",
       "layers of linear attention, whose state is not K and V of tokens"},
      {{"mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba", "zamba2", "nemotron_h",
        "granitemoehybrid", "falcon_h1", "lfm2", "rwkv", "rwkv6", "rwkv7", "recurrent_gemma"},
       "Mamba and its hybrids (Jamba, Nemotron-H, Granite 4), RWKV",
       "layers with a recurrent state, which is not K and V of tokens"},
      {{"deepseek_v2", "deepseek2", "deepseek_v3", "kimi_k2", "glm_moe_dsa", "minicpm3",
        "mistral4"},
       "DeepSeek V2 and V3, Kimi K2",
       "latent attention (MLA), whose keys and values are kept as one compressed vector"},
      {{"gemma3n", "gemma3n_text", "gemma4", "gemma4_text"},
       "Gemma 3n, Gemma 4",
       "embeddings in every layer and layers that share K and V"},
      {{"llama4", "llama4_text"},
       "Llama 4",
       "attention in chunks, a temperature by position, and experts in some layers only"},
      {{"t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "m2m_100",
        "encoder-decoder", "t5gemma", "t5encoder"},
       "T5, BART, Whisper",
       "an encoder besides the decoder, and attention over its output"},
      {{"bert", "roberta", "distilbert", "modernbert", "nomic-bert", "xlm-roberta"},
       "BERT and its relatives",
       "attention in both directions: these models do not generate text"},
  };
  return *kRefused;
}

}  // namespace lamina::model
