// The members of a JSON object, such as a config as an engine writes it. Needs no library.
//
// C++11, needs neither exceptions nor RTTI.

#ifndef MNNKV_JSON_HPP
#define MNNKV_JSON_HPP

#include <cstddef>
#include <cstdlib>
#include <locale>
#include <sstream>
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

/// Whether a character is in a string, whose quotes `quoted` follows. Passes over an escape.
inline bool json_in_string(char c, std::size_t& at, bool& quoted) {
    const bool inside = quoted;
    at += inside && c == '\\' ? 1 : 0;
    quoted = inside ? c != '"' : c == '"';
    return inside;
}

/// How a character outside of strings changes the nesting.
inline int json_nesting(char c) { return c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0; }

/// Names and values as they stand there. Reads any text; the members are right for well-formed JSON.
inline std::vector<std::pair<std::string, std::string>> json_members(const std::string& object) {
    std::vector<std::pair<std::string, std::string>> members;
    int depth = 0;
    bool quoted = false;
    std::size_t from = 0, colon = 0;
    for (std::size_t at = 0; at < object.size(); ++at) {
        const char c = object[at];
        if (json_in_string(c, at, quoted)) {
            continue;
        }
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
        depth += json_nesting(c);
    }
    return members;
}

/// The value of a member as it stands there; "" where there is none.
inline std::string json_member(const std::string& object, const std::string& name) {
    for (const auto& member : json_members(object)) {
        if (member.first == name) {
            return member.second;
        }
    }
    return std::string();
}

/// The values of a list as they stand there. Reads any text; the values are right for well-formed JSON.
inline std::vector<std::string> json_items(const std::string& list) {
    std::vector<std::string> items;
    int depth = 0;
    bool quoted = false;
    std::size_t from = 0;
    for (std::size_t at = 0; at < list.size(); ++at) {
        const char c = list[at];
        if (json_in_string(c, at, quoted)) {
            continue;
        }
        if (depth == 1 && (c == ',' || c == ']')) {
            const std::string item = json_trimmed(list, from, at);
            if (!item.empty()) {
                items.push_back(item);
            }
            from = at + 1;
        }
        depth += json_nesting(c);
        from = depth == 1 && c == '[' ? at + 1 : from;
    }
    return items;
}

/// Whether a text without blanks around it is one object: nothing follows the brace that closes the first.
inline bool json_is_one_object(const std::string& text) {
    int depth = 0;
    bool quoted = false;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char c = text[at];
        if (json_in_string(c, at, quoted)) {
            continue;
        }
        depth += json_nesting(c);
        if (depth <= 0) {
            return c == '}' && depth == 0 && at + 1 == text.size() && text[0] == '{';
        }
    }
    return false;
}

/// The bytes of a code point in UTF-8.
inline std::string json_utf8(unsigned long code) {
    if (code < 0x80) {
        return std::string(1, static_cast<char>(code));
    }
    std::string bytes;
    unsigned long most = 0x3F;  // what the first byte may hold
    while (code > most) {
        bytes.insert(bytes.begin(), static_cast<char>(0x80 | (code & 0x3F)));
        code >>= 6;
        most = bytes.size() == 1 ? 0x1F : most >> 1;
    }
    return static_cast<char>((~most << 1 & 0xFF) | code) + bytes;
}

/// A JSON string, with its escapes resolved. False if it is none.
inline bool json_text(const std::string& value, std::string& text) {
    if (value.size() < 2 || value[0] != '"' || value[value.size() - 1] != '"') {
        return false;
    }
    const std::string names = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    const std::size_t end = value.size() - 1;
    unsigned long high = 0;  // the first half of a pair of surrogates
    text.clear();
    for (std::size_t at = 1; at < end; ++at) {
        if (value[at] != '\\') {
            if (high != 0 || static_cast<unsigned char>(value[at]) < 32) {
                return false;
            }
            text += value[at];
            continue;
        }
        const char name = ++at < end ? value[at] : '\0';
        if (name == 'u' && at + 4 < end) {
            char* last = nullptr;
            const std::string digits = value.substr(at + 1, 4);
            const unsigned long code = std::strtoul(digits.c_str(), &last, 16);
            at += 4;
            const bool is_low = code >= 0xDC00 && code < 0xE000;
            if (*last != '\0' || digits.find_first_of(" +-xX") != std::string::npos || is_low != (high != 0)) {
                return false;
            }
            if (code >= 0xD800 && code < 0xDC00) {
                high = code;
                continue;
            }
            text += json_utf8(is_low ? 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00) : code);
            high = 0;
        } else if (name == '\0' || high != 0 || names.find(name) == std::string::npos) {
            return false;
        } else {
            text += meanings[names.find(name)];
        }
    }
    return high == 0;
}

/// A JSON string of any text.
inline std::string json_quoted(const std::string& text) {
    const char digits[] = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : text) {
        const unsigned code = static_cast<unsigned char>(c);
        if (code < 32) {
            out += std::string("\\u00") + digits[code / 16] + digits[code % 16];
        } else {
            out += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
        }
    }
    return out + '"';
}

/// A JSON number that is all of `text`, and from 0 to 1e9. The locale of the program has no effect.
inline bool json_number(const std::string& text, double& number) {
    std::istringstream given(text);
    given.imbue(std::locale::classic());
    double read = 0;
    const bool is_number = text.find_first_not_of("0123456789.eE+-") == std::string::npos && text[0] != '+' &&
                           given >> read && given.eof() && read >= 0 && read <= 1e9;
    number = is_number ? read : number;
    return is_number;
}

/// The number of a member; `absent` where there is none. The locale of the program has no effect.
inline double json_number_of(const std::string& object, const std::string& name, double absent = 0) {
    std::istringstream given(json_member(object, name));
    given.imbue(std::locale::classic());
    double number = 0;
    return given >> number ? number : absent;
}

/// A number as JSON has it, as printf's %g with `digits` digits. The locale of the program has no effect.
inline std::string json_number_text(double number, int digits) {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text.precision(digits);
    text << number;
    return text.str();
}

/// A JSON string without \u and control characters. False, and `path` as it was, if it is none.
inline bool json_path(const std::string& value, std::string& path) {
    if (value.size() < 3 || value[0] != '"' || value[value.size() - 1] != '"') {
        return false;
    }
    std::string text;
    for (std::size_t at = 1; at + 1 < value.size(); ++at) {
        if (value[at] == '\\') {
            ++at;
            if (std::string("\"\\/").find(value[at]) == std::string::npos) {
                return false;
            }
        }
        text += value[at];
    }
    path = text;
    return true;
}

}  // namespace mnnkv_host

#endif  // MNNKV_JSON_HPP
