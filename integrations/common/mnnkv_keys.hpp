// Keys of a config that begin with "kv_" and are an adapter's, not the session's. Needs no library.
//
// C++11, needs neither exceptions nor RTTI.

#ifndef MNNKV_KEYS_HPP
#define MNNKV_KEYS_HPP

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "mnnkv_json.hpp"

namespace mnnkv_host {

/// A key that the session reads or warns about, or one of an adapter.
inline bool is_key(const std::string& name) {
    static const char* const names[] = {"kv_chat_enable", "kv_dump_folder", "kv_library", "kv_metrics", "kv_required"};
    static const char* const of_session[] = {"kv_h2o_", "kv_lossless_", "kv_memory", "kv_quant"};
    const auto is_name = [&name](const char* key) { return name == key; };
    const auto begins = [&name](const char* with) { return name.find(with) == 0; };
    return std::any_of(std::begin(names), std::end(names), is_name) ||
           std::any_of(std::begin(of_session), std::end(of_session), begins);
}

/// One sentence for each key that is nearly one of these: with capital letters, hyphens, or without the first underscore.
inline std::vector<std::string> misspelt_keys(const std::string& json) {
    std::vector<std::string> faults;
    for (const auto& member : json_members(json)) {
        std::string meant;
        for (const char c : member.first) {
            meant += c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        }
        if (meant.compare(0, 2, "kv") == 0 && meant.compare(0, 3, "kv_") != 0) {
            meant.insert(2, "_");
        }
        if (member.first.compare(0, 3, "kv_") != 0 && is_key(meant)) {
            faults.push_back(member.first + " is not a key of mnn-kv; did you mean " + meant + "?");
        }
    }
    return faults;
}

/// One sentence for each key that is unknown.
inline std::vector<std::string> key_faults(const std::string& json) {
    std::vector<std::string> faults;
    for (const auto& member : json_members(json)) {
        const std::string& key = member.first;
        if (key == "kv_park" || key == "kv_save" || key == "kv_load" || key == "kv_overwrite" || key == "kv_trim_mb") {
            faults.push_back(key + " is a command, which a config does not carry out");
        } else if (key.compare(0, 3, "kv_") == 0 && !is_key(key)) {
            faults.push_back(key + " is not a key of this version");
        }
    }
    return faults;
}

}  // namespace mnnkv_host

#endif  // MNNKV_KEYS_HPP
