// How a model's config says that keys are rotated. Names no engine. C++11, needs neither exceptions nor RTTI.

#ifndef MNNKV_ROTATION_HPP
#define MNNKV_ROTATION_HPP

#include <cstdint>
#include <string>

#include "mnnkv.hpp"
#include "mnnkv_json.hpp"

namespace mnnkv_host {

/// How keys of a model are rotated: kv_rope_theta, kv_rope_dims (0: all of a head) and kv_rope_pairing of its config. A key
/// that is wrong sets `refusal`; then, and without a theta, pairing is 0.
inline mnnkv_rotation rotation_of(const std::string& config, std::string& refusal) {
    mnnkv_rotation rotation = mnnkv::make<mnnkv_rotation>();
    double theta = 0, dims = 0;
    bool adjacent = false;
    for (const auto& member : json_members(config)) {
        const std::string &key = member.first, &value = member.second;
        if (key == "kv_rope_theta" && !(json_number(value, theta) && theta > 1)) {
            refusal = key + " is " + value + "; a number above 1 expected";
        } else if (key == "kv_rope_dims" && !(json_number(value, dims) && dims / 2 == static_cast<std::uint32_t>(dims / 2))) {
            refusal = key + " is " + value + "; an even number expected, 0 for all dims of a head";
        } else if (key == "kv_rope_pairing") {
            adjacent = value == "\"adjacent\"";
            if (!adjacent && value != "\"half\"") {
                refusal = key + " is " + value + "; \"half\" or \"adjacent\" expected";
            }
        }
    }
    if (theta > 1 && refusal.empty()) {
        rotation.theta = static_cast<float>(theta);
        rotation.dims = static_cast<std::uint32_t>(dims);
        rotation.pairing = adjacent ? 2 : 1;
    }
    return rotation;
}

}  // namespace mnnkv_host

#endif  // MNNKV_ROTATION_HPP
