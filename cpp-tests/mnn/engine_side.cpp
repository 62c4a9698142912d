// The adapter's calls of MNN's LLM engine, which may be a library of its own: linked without mnn-kv. Compiled as MNN is.

#include <string>

#include "mnnkv_mnn.hpp"
#include "stub_host.hpp"

void mnn_stub::print(const char*, ...) {}

int main() {
    MNN::KVMeta meta;
    mnnkv_mnn::host host(R"({"kv_chat_enable": true})");
    host.chats = true;
    host.attention_type = "full";
    host.attention_mask = "float";
    mnnkv_mnn::attach(meta, host);
    mnn_stub::llm_context context;
    std::string prompt;
    const std::string load = R"({"kv_load": "chat.kv"})";
    mnnkv_mnn::check_late_keys(host.config, context);
    mnnkv_mnn::reset(meta, context);
    const bool interrupted = mnnkv_mnn::command(R"({"kv_park": false})", meta, context, prompt);
    const bool waits = mnnkv_mnn::is_command(load) && mnnkv_mnn::needs_step(load, meta);
    return interrupted && waits && host.edits_history() && mnnkv_mnn::metrics(meta).empty() ? 0 : 1;
}
