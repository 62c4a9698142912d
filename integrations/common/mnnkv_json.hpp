// The members of a JSON object, such as a config as an engine writes it. Needs no library.
//
// C++11, needs neither exceptions nor RTTI.

#ifndef MNNKV_JSON_HPP
#define MNNKV_JSON_HPP

#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace mnnkv_host {

/// A part of a text without the blanks around it.
inline std::string json_trimmed(const std::string& text, std::size_t begin, std::size_t end) {
    const std::string blanks = " \t\r\n";
    while (begin < end && blanks.find(text[begin]) != std::string::npos) {
        ++begin;
    }
    while (begin < end && blanks.find(text[end - 1]) != std::string::npos) {
        --end;
    }
    return text.substr(begin, end - begin);
}

/// Names and values as they stand there. Reads any text; the members are right for well-formed JSON.
inline std::vector<std::pair<std::string, std::string>> json_members(const std::string& object) {
    std::vector<std::pair<std::string, std::string>> members;
    int depth = 0;
    bool quoted = false;
    std::size_t from = 0, colon = 0;
    for (std::size_t at = 0; at < object.size(); ++at) {
        const char c = object[at];
        if (quoted) {
            at += c == '\\' ? 1 : 0;
            quoted = c != '"';
            continue;
        }
        quoted = c == '"';
        const bool ends = depth == 1 && (c == ',' || c == '}');
        if (ends && colon != 0) {
            const std::string name = json_trimmed(object, from, colon), value = json_trimmed(object, colon + 1, at);
            if (name.size() >= 2 && name[0] == '"' && !value.empty()) {
                members.emplace_back(name.substr(1, name.size() - 2), value);
            }
        }
        if (depth == 1 && c == ':') {
            colon = at;
        }
        if (ends || (depth == 0 && c == '{')) {
            from = at + 1;
            colon = 0;
        }
        depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    }
    return members;
}

/// A JSON number that is all of `text`, and at least 0.
inline bool json_number(const std::string& text, double& number) {
    char* end = nullptr;
    const double read = std::strtod(text.c_str(), &end);
    const bool is_number = !text.empty() && *end == '\0' && read >= 0 && read <= 1e9 && text[0] != '+';
    number = is_number ? read : number;
    return is_number;
}

/// A JSON string without \u and control characters.
inline bool json_path(const std::string& value, std::string& path) {
    if (value.size() < 3 || value[0] != '"' || value[value.size() - 1] != '"') {
        return false;
    }
    for (std::size_t at = 1; at + 1 < value.size(); ++at) {
        if (value[at] == '\\') {
            ++at;
            if (std::string("\"\\/").find(value[at]) == std::string::npos) {
                return false;
            }
        }
        path += value[at];
    }
    return true;
}

}  // namespace mnnkv_host

#endif  // MNNKV_JSON_HPP
