/** Programs that share prefixes through servers, real and faulty ones: ci/test-store runs them. */
package dev.kvasir.redis.trial;
