// mnn-kv for a program that uses MNN's LLM engine: the commands of set_config as functions. Needs no library and no other file.
//
//   #include <llm/llm.hpp>
//   #include "mnnkv_mnn_api.hpp"
//
//   mnnkv_mnn::save_chat(*llm, "chats/7.kv");
//   mnnkv_mnn::park(*llm);
//
// C++11, needs neither exceptions nor RTTI. Call them between steps, from the thread of the Llm, unless they say otherwise. A
// failure prints the reason, and chat and file are as before. README.md has what each does.

#ifndef MNNKV_MNN_API_HPP
#define MNNKV_MNN_API_HPP

#include <cstddef>
#include <locale>
#include <sstream>
#include <string>

namespace mnnkv_mnn {

/// A JSON string of a path in UTF-8.
inline std::string quoted(const std::string& path) {
    std::string text = "\"";
    for (const char letter : path) {
        text += letter == '"' || letter == '\\' ? std::string("\\") + letter : std::string(1, letter);
    }
    return text + "\"";
}

/// Takes what a step need not have at once out of memory: with kv_memory_mb and a file, blocks go there, and come back as they
/// are used. Without one save_chat, and load_chat of the same file, return the memory of the whole cache until the next step.
template <class Llm>
bool park(Llm& llm) {
    return llm.set_config("{\"kv_park\": true}");
}

/// Saves the chat to a file, which is the chat's own from then on: what is new, where it is already. overwrite: also in place of
/// another chat.
template <class Llm>
bool save_chat(Llm& llm, const std::string& path, bool overwrite = false) {
    return llm.set_config("{\"kv_save\": " + quoted(path) + (overwrite ? ", \"kv_overwrite\": true}" : "}"));
}

/// Replaces the model's chat by that of a file, which is the chat's own from then on, and whose tokens the next step reads.
template <class Llm>
bool load_chat(Llm& llm, const std::string& path) {
    return llm.set_config("{\"kv_load\": " + quoted(path) + "}");
}

/// Sets the budget of kv_memory_mb to so many millions of bytes, 0 = the least that the model may have, for onTrimMemory and its
/// like. Blocks leave before it returns, raw tokens in their layer's next step; a later, larger budget takes blocks back from the
/// file as they are used. Any thread, once the model has made a step; waits for a part of a step or a save that runs.
template <class Llm>
bool trim(Llm& llm, double megabytes) {
    std::ostringstream text;
    text.imbue(std::locale::classic());  // a point in the program's locale, too
    text.precision(17);
    text << "{\"kv_trim_mb\": " << megabytes << "}";
    return llm.set_config(text.str());
}

/// The metrics as a JSON object, {"off": REASON, ...} where mnn-kv does nothing; "" where it is to do nothing.
template <class Llm>
std::string metrics(Llm& llm) {
    const std::string config = llm.dump_config(), name = "\"kv_metrics\":";
    const std::size_t at = config.find(name), from = at == std::string::npos ? at : config.find('{', at);
    int depth = 0;
    bool quoted = false;
    for (std::size_t end = from; end < config.size(); ++end) {
        const char c = config[end];
        if (quoted) {
            end += c == '\\' ? 1 : 0;
            quoted = c != '"';
            continue;
        }
        quoted = c == '"';
        depth += c == '{' ? 1 : c == '}' ? -1 : 0;
        if (depth == 0) {
            return config.substr(from, end + 1 - from);
        }
    }
    return "";
}

}  // namespace mnnkv_mnn

#endif  // MNNKV_MNN_API_HPP
