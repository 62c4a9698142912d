// Commands of a program for its chat, which come as JSON through an engine's config, and how a chat is parked.
//
// C++11, needs neither exceptions nor RTTI.
//
//   chat_command     what a config object asks for
//   parking_options  how a model's config wants layers to be parked

#ifndef MNNKV_CHAT_HPP
#define MNNKV_CHAT_HPP

#include <cstdint>
#include <cstdlib>
#include <string>

#include "mnnkv.hpp"
#include "mnnkv_json.hpp"

namespace mnnkv_host {

/// A JSON number that is all of `text`, and at least 0.
inline bool read_number(const std::string& text, double& number) {
    char* end = nullptr;
    const double read = std::strtod(text.c_str(), &end);
    const bool is_number = !text.empty() && *end == '\0' && read >= 0 && read <= 1e9 && text[0] != '+';
    number = is_number ? read : number;
    return is_number;
}

/// A config object with just one of the keys kv_park, kv_save and kv_load.
struct chat_command {
    enum { none, park, interrupt, save, load } what = none;
    /// park: 1 to 9, 0 is the library's choice.
    int effort = 0;
    /// save, load
    std::string path;
    /// Why the command is refused; "" if it is not.
    std::string refusal;

    /// none, without a refusal, if `content` has none of the keys.
    static chat_command read(const std::string& content) {
        chat_command command;
        const auto members = json_members(content);
        for (const auto& member : members) {
            const std::string &key = member.first, &value = member.second;
            double effort = 0;
            if (key == "kv_park") {
                const bool is_effort = read_number(value, effort) && effort >= 1 && effort <= 9 &&
                                       effort == static_cast<int>(effort);
                command.what = value == "false" ? interrupt : park;
                command.effort = static_cast<int>(effort);
                if (!is_effort && value != "true" && value != "false") {
                    command.refusal = "kv_park is " + value + "; true, false or 1 to 9 expected";
                }
            } else if (key == "kv_save" || key == "kv_load") {
                command.what = key == "kv_save" ? save : load;
                if (!read_path(value, command.path)) {
                    command.refusal = key + " is " + value + "; the path of a file expected, in UTF-8";
                }
            }
        }
        if (command.what != none && members.size() > 1) {
            command.refusal = "kv_park, kv_save and kv_load stand alone; " + std::to_string(members.size()) +
                              " keys are given";
        }
        return command;
    }

private:
    /// A JSON string without \u and control characters.
    static bool read_path(const std::string& value, std::string& path) {
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
};

/// How a model's layers are parked: kv_rope_theta, kv_rope_dims and kv_rope_pairing of its config. A key that is wrong
/// sets `refusal`, and there is no rotation hint.
inline mnnkv_park_options parking_options(const std::string& config, std::string& refusal) {
    mnnkv_park_options options = mnnkv::make<mnnkv_park_options>();
    double theta = 0, dims = 0;
    bool adjacent = false;
    for (const auto& member : json_members(config)) {
        const std::string &key = member.first, &value = member.second;
        if (key == "kv_rope_theta" && !(read_number(value, theta) && theta > 1)) {
            refusal = key + " is " + value + "; a number above 1 expected";
        } else if (key == "kv_rope_dims" && !(read_number(value, dims) && dims == static_cast<std::uint32_t>(dims))) {
            refusal = key + " is " + value + "; a whole number expected, 0 for all dims of a head";
        } else if (key == "kv_rope_pairing") {
            adjacent = value == "\"adjacent\"";
            if (!adjacent && value != "\"half\"") {
                refusal = key + " is " + value + "; \"half\" or \"adjacent\" expected";
            }
        }
    }
    if (theta > 1 && refusal.empty()) {
        options.rope_theta = static_cast<float>(theta);
        options.rope_dims = static_cast<std::uint32_t>(dims);
        // MNNKV_ROPE_ADJACENT or MNNKV_ROPE_HALF, which gear.h has for MNNKV_EXPERIMENTAL only.
        options.rope_pairing = adjacent ? 2 : 1;
    }
    return options;
}

}  // namespace mnnkv_host

#endif  // MNNKV_CHAT_HPP
