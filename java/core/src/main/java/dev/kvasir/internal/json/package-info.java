/** JSON for headers, metadata and the settings of models. Not part of the API. */
@NullMarked
package dev.kvasir.internal.json;

import org.jspecify.annotations.NullMarked;
