// The adapter's calls of MNN's LLM engine, which may be a library of its own: linked without mnn-kv. Compiled as MNN is.

#include <string>

#include "kv_plugin.hpp"
#include "stub_host.hpp"

void mnn_stub::print(const char*, ...) {}

int main() {
    MNN::KVMeta meta;
    kv_plugin::host host(R"({"kv_chat_enable": true})");
    host.chats = true;
    host.attention_type = "full";
    host.attention_mask = "float";
    kv_plugin::attach(meta, host);
    mnn_stub::llm_context context;
    std::string prompt;
    const std::string load = R"({"kv_load": "chat.kv"})";
    kv_plugin::check_late_keys(host.config, context);
    kv_plugin::reset(meta, context);
    const bool refused = !kv_plugin::command(R"({"kv_park": true})", meta, context, prompt);
    const bool waits = kv_plugin::is_command(load) && kv_plugin::needs_step(load, meta);
    int chunk = 0;
    const kv_plugin::prompt_chunk limit(meta, chunk, 4096);
    const bool runs = !kv_plugin::needs_step(meta) && !kv_plugin::is_refused(meta, context, prompt) && chunk == 0;
    return refused && waits && runs && host.edits_history() && kv_plugin::metrics(meta).empty() ? 0 : 1;
}
